"""Families of checkpoints: how to make a model from `config.json`, and where its tensors are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from re import sub
from typing import Any

from flax import nnx

from attention.modules import LanguageModel, TransformerConfig
from attention.primitives.choice import one_of
from attention.weights.layouts import Rule

# Names of Hugging Face to names in `attention.modules.ACTIVATIONS`.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


class Settings(dict[str, Any]):
    """The content of `config.json`; a key that is missing raises a ValueError."""

    def __missing__(self, key: str) -> Any:  # noqa: ANN401 - never returns
        raise ValueError(f"config.json of a {self.get('model_type')} checkpoint lacks {key!r}")

    def activation(self, key: str, default: str) -> str:
        """Return the name in `ACTIVATIONS` of an activation of Hugging Face.

        Raises:
            ValueError: an unknown activation.
        """
        name = self.get(key, default)
        one_of(key, name, tuple(ACTIVATIONS))
        return ACTIVATIONS[name]

    def require(self, key: str, *supported: Any) -> None:  # noqa: ANN401 - any JSON value
        """Raise a ValueError if a field is present and has none of the supported values."""
        if key in self and self[key] not in supported:
            raise ValueError(
                f"a {self['model_type']} checkpoint with {key}={self[key]!r} is not supported: "
                f"it must be {' or '.join(map(repr, supported))}"
            )

    def require_equal(self, first: str, second: str) -> None:
        """Raise a ValueError if two fields differ."""
        if self[first] != self[second]:
            raise ValueError(
                f"a {self['model_type']} checkpoint must have equal {first} and {second}, "
                f"got {self[first]} and {self[second]}"
            )


@dataclass(frozen=True)
class Family:
    """An architecture of checkpoints.

    Attributes:
        config: from the settings to the config of the Transformer.
        build: `(settings, config, rngs)` to a model; called abstractly, by `nnx.eval_shape`.
        rules: from the settings to the rules of all parameters, in any order. Rules of parameters
            that a model does not have are allowed. None: the tensors have the names of the
            parameters.
        ignored: patterns of tensors that are not read, as in `fnmatch`: copies of tied tables,
            constants, and heads that the model does not have.
        renames: (regular expression, replacement) of names in older checkpoints.
    """

    config: Callable[[Settings], TransformerConfig]
    build: Callable[[Settings, TransformerConfig, nnx.Rngs], nnx.Module]
    rules: Callable[[Settings], Sequence[Rule]] | None = None
    ignored: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()

    def rename(self, name: str) -> str:
        """Return the name that rules use."""
        for pattern, replacement in self.renames:
            name = sub(pattern, replacement, name)
        return name

    def is_ignored(self, name: str) -> bool:
        """Return whether a tensor without a rule is allowed."""
        return any(fnmatch(name, pattern) for pattern in self.ignored)


def language_model(settings: Settings, config: TransformerConfig, rngs: nnx.Rngs) -> LanguageModel:
    """Return the model of a decoder-only checkpoint, as `Family.build`."""
    return LanguageModel.from_config(config, vocab_size=settings["vocab_size"], rngs=rngs)

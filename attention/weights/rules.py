"""How the tensors of a family of checkpoints map to the parameters of a model, and back.

The letters are those of the modules: a kernel of a linear layer is `[*inputs, *outputs]`, for
instance `[D, N, H]`; PyTorch stores it as `[outputs, inputs]`, for instance `[N·H, D]`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from re import sub
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from attention.modules import EncoderDecoder, TransformerConfig
from attention.modules.transformer import Layers
from attention.primitives.choice import one_of

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
        """Return the name in `ACTIVATIONS` of an activation, or raise a ValueError for others."""
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


@dataclass(frozen=True)
class Layout:
    """An invertible change of the order of axes and of the shape of numpy and jax arrays.

    Attributes:
        write: `(parameter) -> tensor`.
        read: `(tensor) -> array`, which has the elements of the parameter in its order but perhaps
            another shape; the parameter is the reshaped array.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any] = lambda tensor: tensor


def matrix(num_inputs: int = 1) -> Layout:
    """Return the layout of a matrix: `[*inputs, *outputs]` as `[inputs, outputs]`."""
    return Layout(lambda array: array.reshape(math.prod(array.shape[:num_inputs]), -1))


def transposed(num_inputs: int = 1) -> Layout:
    """Return the layout of a PyTorch `Linear`: `[*inputs, *outputs]` as `[outputs, inputs]`."""
    return Layout(lambda array: matrix(num_inputs).write(array).T, lambda tensor: tensor.T)


SAME = Layout(lambda array: array)
FLAT = Layout(lambda array: array.reshape(-1))  # biases [N, H] as [N·H]
LEADING_AXIS = Layout(lambda array: array[None])


@dataclass(frozen=True)
class Rule:
    """A parameter and the tensor that contains it.

    Attributes:
        parameter: dotted path in the model with unstacked layers; `{i}` is the index of a layer.
        tensor: name in the checkpoint, with the same `{i}`.
        layout: from the parameter to the tensor.
        axis: if several parameters share the tensor, the axis along which they are concatenated, in
            the order of their rules.
        default: value of all elements if a checkpoint lacks the tensor; None if it must not.
    """

    parameter: str
    tensor: str
    layout: Layout = SAME
    axis: int | None = None
    default: float | None = None


def linear(parameter: str, tensor: str, layout: Layout | None = None) -> tuple[Rule, Rule]:
    """Return the rules of kernel and bias of a linear layer; no layout means that of PyTorch."""
    return (
        Rule(f"{parameter}.kernel", f"{tensor}.weight", layout or transposed()),
        Rule(f"{parameter}.bias", f"{tensor}.bias", FLAT),
    )


def norm(parameter: str, tensor: str) -> tuple[Rule, Rule]:
    """Return the rules of scale and bias of a norm."""
    return (
        Rule(f"{parameter}.scale", f"{tensor}.weight"),
        Rule(f"{parameter}.bias", f"{tensor}.bias"),
    )


def residual(parameter: str, tensor: str, of_norm: str, names: Sequence[str]) -> list[Rule]:
    """Return the rules of a sublayer and its norm.

    Args:
        parameter: path of the `Residual`, which ends with "attention" or "feed_forward".
        tensor: where the names of its tensors begin.
        of_norm: rest of the name of the norm.
        names: rests of those of query, key, value and output, or of up, down and gate.
    """
    is_attention = parameter.endswith("attention")
    ours = ("query", "key", "value", "output") if is_attention else ("up", "down", "gate")
    listed = [*norm(f"{parameter}.norm", f"{tensor}.{of_norm}")]
    for part, name in zip(ours, names, strict=is_attention):  # the gate is optional
        layout = transposed(2 if part == "output" else 1)
        listed += linear(f"{parameter}.sublayer.{part}", f"{tensor}.{name}", layout)
    return listed


Build = Callable[[Settings, TransformerConfig, nnx.Rngs], nnx.Module]


@dataclass(frozen=True)
class Family:
    """An architecture of checkpoints.

    Attributes:
        config: from the settings to the config of the Transformer.
        build: `(settings, config, rngs)` to a model; called abstractly, by `nnx.eval_shape`.
        rules: from the settings to the rules of all parameters. Rules of parameters that a model
            does not have are allowed. None: the tensors have the names of the parameters.
        copies: name of a tensor to the name of the one that it repeats, as of tied tables: it is
            read if the other is missing, and otherwise compared with it.
        ignored: patterns of tensors that are not read, as in `fnmatchcase`: constants, and heads
            that the model does not have.
        renames: (regular expression, replacement) of names in older checkpoints.
    """

    config: Callable[[Settings], TransformerConfig]
    build: Build
    rules: Callable[[Settings], Sequence[Rule]] | None = None
    copies: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()

    def rename(self, name: str) -> str:
        """Return the name that rules use."""
        for pattern, replacement in self.renames:
            name = sub(pattern, replacement, name)
        return name

    def is_ignored(self, name: str) -> bool:
        """Return whether a tensor is in `ignored`."""
        return any(fnmatchcase(name, pattern) for pattern in self.ignored)


def from_config(kind: type[nnx.Module], *sizes: str, **options: object) -> Build:
    """Return `Family.build` of a class; the arguments `sizes` are the size of the vocabulary."""

    def build(settings: Settings, config: TransformerConfig, rngs: nnx.Rngs) -> nnx.Module:
        given = dict.fromkeys(sizes, settings["vocab_size"])
        return kind.from_config(config, rngs=rngs, **given, **options)

    return build


encoder_decoder = from_config(EncoderDecoder, "source_vocab_size", "target_vocab_size")


class Part(NamedTuple):
    """A parameter of one layer, or outside of layers, and the part of a tensor that contains it.

    Attributes:
        key: of the array with the parameter, in the flat state of the model.
        index: of the parameter on the leading axis of the array, if that contains several layers.
        array: that array, or its shape and dtype.
        rule: of the parameter.
        tensor: name of the tensor.
        end: shape of the tensor up to the end of the part; of the last part, of the whole tensor.
        slices: of the part in the tensor; empty for all of it.
    """

    key: tuple[Any, ...]
    index: int | None
    array: Any
    rule: Rule
    tensor: str
    end: tuple[int, ...]
    slices: tuple[slice, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the parameter."""
        return self.array.shape[self.index is not None :]

    def write(self) -> np.ndarray:
        """Return the part of the tensor; no other layer of the array is copied to the host."""
        parameter = self.array if self.index is None else self.array[self.index]
        return self.rule.layout.write(np.asarray(parameter))


def parts_by_tensor(model: nnx.Module, family: Family, settings: Settings) -> dict[str, list[Part]]:
    """Return the parts of each tensor of a model, by its name in the checkpoint.

    Raises:
        ValueError: a parameter without a rule.
    """
    arrays = [*_arrays(model)]
    rules = [Rule(path, path) for path, *_ in arrays]
    if family.rules is not None:
        rules = family.rules(settings)
    order = {rule.parameter: number for number, rule in enumerate(rules)}
    for path, layers, *_ in arrays:
        if path not in order:
            raise ValueError(
                f"the model has the parameter {path.replace('{i}', str(layers[0]))!r}, for which a "
                f"{settings['model_type']} checkpoint has no tensor"
            )
    tensors: dict[str, list[Part]] = {}
    for path, layers, key, array in sorted(arrays, key=lambda each: order[each[0]]):
        rule, is_stacked = rules[order[path]], len(layers) > 1
        given = jax.ShapeDtypeStruct(array.shape[is_stacked:], "float32")
        shape = jax.eval_shape(rule.layout.write, given).shape
        for index, layer in enumerate(layers):
            name = rule.tensor.replace("{i}", str(layer))
            parts = tensors.setdefault(name, [])
            end, slices = list(shape), ()
            if rule.axis is not None:
                start = parts[-1].end[rule.axis] if parts else 0
                end[rule.axis] += start
                slices = (*[slice(None)] * (rule.axis % len(end)), slice(start, end[rule.axis]))
            place = index if is_stacked else None
            parts.append(Part(key, place, array, rule, name, tuple(end), slices))
    return tensors


def _arrays(model: nnx.Module) -> Iterator[tuple[str, Sequence[int], tuple[Any, ...], Any]]:
    """Yield path, layers, key and array of each array, without those of random number generators.

    In a path, `{i}` is the index of a layer. An array with several layers has a leading axis.
    """
    stacks = {path: part for path, part in nnx.iter_modules(model) if isinstance(part, Layers)}
    for key, leaf in nnx.to_flat_state(nnx.state(model)):
        if isinstance(leaf, nnx.RngState):
            continue
        path, layers = list(map(str, key)), [0]
        for end in range(len(key)):
            if key[:end] in stacks and key[end] == "blocks":
                layers = stacks[key[:end]].indices()[int(key[end + 1])]
                path[end : end + 2] = ["{i}"]
                break
        array = leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
        yield ".".join(path), layers, key, array

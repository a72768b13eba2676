"""How the tensors of a family of checkpoints map to the parameters of a model, and back.

The letters are those of the modules: a kernel of a linear layer is `[*inputs, *outputs]`, for
instance `[D, N, H]`; PyTorch stores it as `[outputs, inputs]`, for instance `[N·H, D]`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from re import sub
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import Array

from attention.modules import LanguageModel, TransformerConfig
from attention.modules.transformer import Layers
from attention.primitives.choice import one_of

# Arrays of numpy or jax: layouts use methods that both have.
ArrayLike = Any


@dataclass(frozen=True)
class Layout:
    """An invertible change of the order of axes and of the shape.

    Attributes:
        write: `(parameter) -> tensor`.
        read: `(tensor) -> array`, which has the elements of the parameter in its order but perhaps
            another shape; the parameter is the reshaped array.
    """

    write: Callable[[ArrayLike], ArrayLike]
    read: Callable[[ArrayLike], ArrayLike] = lambda tensor: tensor

    def tensor_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the tensor of a parameter with a shape."""
        return jax.eval_shape(self.write, jax.ShapeDtypeStruct(tuple(shape), "float32")).shape


def _matrix(array: ArrayLike, num_inputs: int) -> ArrayLike:
    inputs = math.prod(array.shape[:num_inputs])
    return array.reshape(inputs, math.prod(array.shape[num_inputs:]))


def transposed(num_inputs: int = 1) -> Layout:
    """Return the layout of a PyTorch `Linear`: `[*inputs, *outputs]` as `[outputs, inputs]`."""
    return Layout(lambda array: _matrix(array, num_inputs).T, lambda tensor: tensor.T)


def matrix(num_inputs: int = 1) -> Layout:
    """Return the layout of a matrix: `[*inputs, *outputs]` as `[inputs, outputs]`."""
    return Layout(lambda array: _matrix(array, num_inputs))


def patch_kernel(size: int, channels: int) -> Layout:
    """Return the layout of a PyTorch `Conv2d` whose stride is the size of its kernel.

    The parameter `[size·size·channels, D]` is stored as `[D, channels, size, size]`.
    """
    return Layout(
        lambda array: array.reshape(size, size, channels, -1).transpose(3, 2, 0, 1),
        lambda tensor: tensor.transpose(2, 3, 1, 0),
    )


SAME = Layout(lambda array: array)
FLAT = Layout(lambda array: array.reshape(-1))  # biases [N, H] as [N·H]
WITH_LEADING_AXIS = Layout(lambda array: array[None])


@dataclass(frozen=True)
class Rule:
    """A parameter and the tensor that contains it.

    Attributes:
        parameter: dotted path in the model with unstacked layers; `{i}` is the index of a layer.
        tensor: name in the checkpoint, with the same `{i}`.
        layout: from the parameter to the tensor.
        axis: if several parameters share the tensor, the axis along which it is divided.
        start: the first index of this parameter on the axis.
        size: of the whole tensor along the axis.
        default: value of all elements if a checkpoint lacks the tensor; None if it must not.
    """

    parameter: str
    tensor: str
    layout: Layout = SAME
    axis: int | None = None
    start: int = 0
    size: int = 0
    default: float | None = None

    def tensor_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the whole tensor, given that of the parameter."""
        own = list(self.layout.tensor_shape(shape))
        if self.axis is not None:
            own[self.axis] = self.size
        return tuple(own)

    def slices(self, shape: Sequence[int]) -> tuple[slice, ...] | None:
        """Return the part of the tensor that is the parameter; None for all of it."""
        if self.axis is None:
            return None
        own = self.layout.tensor_shape(shape)
        part = slice(self.start, self.start + own[self.axis])
        return (slice(None),) * self.axis + (part,)


def linear(parameter: str, tensor: str, *, num_inputs: int = 1) -> tuple[Rule, Rule]:
    """Return the rules of kernel and bias of a linear layer that PyTorch stores.

    Args:
        parameter: path of the layer.
        tensor: name of the layer in the checkpoint.
        num_inputs: number of input axes of the kernel.
    """
    return (
        Rule(f"{parameter}.kernel", f"{tensor}.weight", transposed(num_inputs)),
        Rule(f"{parameter}.bias", f"{tensor}.bias", FLAT),
    )


def norm(parameter: str, tensor: str) -> tuple[Rule, Rule]:
    """Return the rules of scale and bias of a norm."""
    return (
        Rule(f"{parameter}.scale", f"{tensor}.weight"),
        Rule(f"{parameter}.bias", f"{tensor}.bias"),
    )


def attention(parameter: str, tensor: str, names: Sequence[str]) -> tuple[Rule, ...]:
    """Return the rules of queries, keys, values and output, given their four names."""
    query, key, value, output = (f"{tensor}.{name}" for name in names)
    return (
        *linear(f"{parameter}.query", query),
        *linear(f"{parameter}.key", key),
        *linear(f"{parameter}.value", value),
        *linear(f"{parameter}.output", output, num_inputs=2),
    )


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


@dataclass(frozen=True)
class Parameter:
    """An array of a model, which may contain one parameter of several layers.

    Attributes:
        key: of the array in the flat state of the model.
        path: dotted path; `{i}` is the index of a layer.
        layers: indices of the layers on the leading axis, or of the one layer without such an axis.
        is_stacked: whether there is a leading axis of layers.
        value: the array, or its shape and dtype.
    """

    key: tuple[Any, ...]
    path: str
    layers: tuple[int, ...]
    is_stacked: bool
    value: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the parameter of one layer."""
        return self.value.shape[1:] if self.is_stacked else self.value.shape

    def of_layer(self, index: int) -> np.ndarray:
        """Return the parameter of one of the layers, by its place in `layers`.

        Only this layer is copied to the host.
        """
        value = _layer(self.value, np.int32(index)) if self.is_stacked else self.value
        return np.asarray(value)


@jax.jit
def _layer(value: Array, index: Array) -> Array:
    """Return one layer of a stacked parameter; compiled once for each shape, not for each index."""
    return jax.lax.dynamic_index_in_dim(value, index, keepdims=False)


def parameters_of(model: nnx.Module) -> list[Parameter]:
    """List the arrays of a model, without the state of random number generators."""
    stacks = {path: part for path, part in nnx.iter_modules(model) if isinstance(part, Layers)}
    _, state = nnx.split(model)
    found = []
    for key, leaf in nnx.to_flat_state(state):
        if isinstance(leaf, nnx.RngState):
            continue
        path, layers, is_stacked = list(map(str, key)), (0,), False
        for end in range(len(key)):
            if key[:end] in stacks and key[end] == "blocks":
                layers = tuple(stacks[key[:end]].indices()[int(key[end + 1])])
                is_stacked = len(layers) > 1
                path[end : end + 2] = ["{i}"]
                break
        value = leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
        found.append(Parameter(key, ".".join(path), layers, is_stacked, value))
    return found


def fill(model: nnx.Module, values: dict[tuple[Any, ...], jax.Array]) -> nnx.Module:
    """Return a model with other arrays, by the `key` of a `Parameter`; empties `values`."""
    definition, state = nnx.split(model)
    flat = []
    for key, leaf in nnx.to_flat_state(state):
        if not isinstance(leaf, nnx.RngState):
            value = values.pop(key)
            leaf = leaf.replace(value) if isinstance(leaf, nnx.Variable) else value
        elif isinstance(leaf.get_value(), jax.ShapeDtypeStruct):
            raise ValueError(
                f"the random state {'.'.join(map(str, key))} is in no checkpoint: pass a model= "
                "with arrays, not one of nnx.eval_shape"
            )
        flat.append((key, leaf))
    return nnx.merge(definition, nnx.from_flat_state(flat))

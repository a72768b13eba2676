"""Rules between the parameters of a model and the tensors of a checkpoint, read in both directions.

The letters are those of the modules: a kernel of a linear layer is `[*inputs, *outputs]`, for
instance `[D, N, H]`; PyTorch stores it as `[outputs, inputs]`, for instance `[N·H, D]`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

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

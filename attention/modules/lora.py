"""Adaptation of trained models: selecting and freezing parameters by path, and LoRA.

Parameters are a model, its `nnx.State` or any pytree. Paths are written with dots, such as
"decoder.layers.blocks.0.self_attention.sublayer.query.kernel". Patterns are those of `fnmatch`: "*"
matches any characters, dots too.

Train some of the parameters by labels for optax, of a state, since optax would call a model:

    labels = label_parameters(nnx.state(model), {"*.norm.*": "train"}, default="freeze")
    optax.multi_transform({"train": optax.adam(1e-3), "freeze": optax.set_to_zero()}, labels)

Train LoRA factors by the gradient of `loss(apply_lora(model, factors))` with respect to `factors`,
and export `apply_lora(model, factors)`.
"""

import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.primitives.choice import did_you_mean
from attention.primitives.pytree_dataclass import pytree_dataclass, static

Parameters = TypeVar("Parameters")
Label = TypeVar("Label")


def select_parameters(parameters: Parameters, *patterns: str) -> dict[str, Array]:
    """Return the arrays whose path matches one of the patterns, by path.

    Raises:
        ValueError: a pattern that matches no path.
    """
    arrays: dict[str, Array] = {}
    _map_arrays(lambda path, array, _: arrays.update({path: array}), parameters)
    chosen: dict[str, Array] = {}
    for pattern in patterns:
        found = {path: array for path, array in arrays.items() if fnmatchcase(path, pattern)}
        if not found:
            hint = did_you_mean(pattern, arrays)
            raise ValueError(f"no parameter has a path that matches {pattern!r}{hint}")
        chosen |= found
    return chosen


def label_parameters(
    parameters: Parameters, labels: Mapping[str, Label], *, default: Label
) -> Parameters:
    """Return the tree of parameters with a label in place of each array.

    Strings are labels for `optax.multi_transform`, bools for `optax.masked`.

    Args:
        parameters: the state of a model or another pytree.
        labels: pattern -> label; the first pattern that matches a path decides.
        default: label of the other parameters.

    Raises:
        TypeError: a model, which optax would call to get the labels.
        ValueError: a pattern that matches no path.
    """
    if callable(parameters):
        name = type(parameters).__name__
        raise TypeError(f"label_parameters needs nnx.state(model), since optax calls a {name}")
    select_parameters(parameters, *labels)

    def label(path: str, *_: object) -> Label:
        matching = (label for pattern, label in labels.items() if fnmatchcase(path, pattern))
        return next(matching, default)

    return _map_arrays(label, parameters)


@pytree_dataclass
class LoRAFactors:
    """Low-rank change of one kernel: scale · down · up (Hu et al. 2021, section 4.1).

    Attributes:
        down: `[*stacked, *inputs, r]`.
        up: `[*stacked, r, *outputs]`.
        num_stacked: number of axes of stacked layers.
        scale: alpha / r.
    """

    down: Array
    up: Array
    num_stacked: int = static()
    scale: float = static()

    def change(self) -> Array:
        """Return the change, `[*stacked, *inputs, *outputs]`."""
        count = self.num_stacked
        stacked, rank = self.down.shape[:count], self.down.shape[-1]
        down = self.down.reshape(*stacked, -1, rank)
        up = self.up.reshape(*stacked, rank, -1)
        shape = *self.down.shape[:-1], *self.up.shape[count + 1 :]
        return self.scale * (down @ up).reshape(shape)


def lora_factors(
    parameters: Parameters,
    *patterns: str,
    rank: int,
    alpha: float | None = None,
    num_inputs: int | None = None,
    num_stacked: int | None = None,
    rng: Array,
) -> dict[str, LoRAFactors]:
    """Make LoRA factors of kernels, by path; the change is 0 at first.

    Which axes of a kernel are inputs is known from its metadata in modules of this library, and for
    matrices. Patterns may match other parameters too, such as biases and embeddings, which get no
    factors unless `num_inputs` is given. Dicts of several calls may be merged.

    Args:
        parameters: a model or another pytree.
        patterns: of the paths of kernels.
        rank: r.
        alpha: scale times r; r if None.
        num_inputs: number of input axes of each kernel.
        num_stacked: number of axes of stacked layers in front of them.
        rng: random key of `down`, normal with variance 1 / inputs; `up` is 0.

    Raises:
        ValueError: a pattern that matches no kernel; a kernel of several axes of which it is not
            known which are inputs; a rank that is not between 1 and the sizes of the kernel.
    """
    chosen = select_parameters(parameters, *patterns)
    kernels: dict[str, tuple[Array, int, int]] = {}  # with the axes where inputs begin and end

    def cannot_split(path: str) -> ValueError:
        axes = f"axes of {path}, {chosen[path].shape}"
        return ValueError(f"cannot split the {axes}, into inputs and outputs: pass num_inputs")

    def add(path: str, kernel: Array, metadata: Mapping[str, Any]) -> None:
        axes = metadata.get("axes")  # logical names, not of stacked layers
        begin = (kernel.ndim - len(axes) if axes else 0) if num_stacked is None else num_stacked
        is_matrix = not axes and kernel.ndim == begin + 2
        count = num_inputs or metadata.get("num_inputs", int(is_matrix))
        if count and begin + count < kernel.ndim:
            kernels[path] = kernel, begin, begin + count
        elif not axes and kernel.ndim > begin + 1:
            raise cannot_split(path)

    _map_arrays(lambda path, *array: path in chosen and add(path, *array), parameters)
    for pattern in patterns:
        matching = select_parameters(chosen, pattern)
        if not kernels.keys() & matching:
            raise cannot_split(next(iter(matching)))
    rngs = jax.random.split(rng, len(kernels))
    factors = {}
    for (path, (kernel, begin, end)), rng in zip(sorted(kernels.items()), rngs, strict=True):
        stacked, inputs, outputs = (
            kernel.shape[:begin],
            kernel.shape[begin:end],
            kernel.shape[end:],
        )
        largest = min(math.prod(inputs), math.prod(outputs))
        if not 1 <= rank <= largest:
            raise ValueError(f"the rank of {path} must lie in 1 to {largest}, got {rank}")
        dtype = jnp.float64 if kernel.dtype == jnp.float64 else jnp.float32
        down = jax.random.normal(rng, (*stacked, *inputs, rank), dtype)
        factors[path] = LoRAFactors(
            down=down * math.prod(inputs) ** -0.5,
            up=jnp.zeros((*stacked, rank, *outputs), dtype),
            num_stacked=begin,
            scale=(rank if alpha is None else alpha) / rank,
        )
    return factors


def apply_lora(parameters: Parameters, factors: Mapping[str, LoRAFactors]) -> Parameters:
    """Return parameters with kernels that LoRA has changed: for training and for export.

    Raises:
        ValueError: factors of a path that the parameters do not contain, or of another shape.
    """
    select_parameters(parameters, *factors)

    def apply(path: str, kernel: Array, _: Mapping[str, Any]) -> Array:
        if path not in factors:
            return kernel
        change = factors[path].change()
        if change.shape != kernel.shape:
            raise ValueError(f"{path} has shape {kernel.shape}, its LoRA factors {change.shape}")
        return (kernel.astype(change.dtype) + change).astype(kernel.dtype)

    return _map_arrays(apply, parameters)


def _map_arrays(
    function: Callable[[str, Array, Mapping[str, Any]], Any], parameters: Parameters
) -> Parameters:
    """Replace each array by `function(path, array, metadata)`."""

    def replace(keys: jax.tree_util.KeyPath, leaf: nnx.Variable | Array) -> Any:  # noqa: ANN401 - whatever the function returns
        path = jax.tree_util.keystr(keys, simple=True, separator=".")
        metadata = leaf.get_metadata() if isinstance(leaf, nnx.Variable) else {}
        return jax.tree.map(lambda array: function(path, array, metadata), leaf)

    return jax.tree_util.tree_map_with_path(
        replace, parameters, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )

"""Adaptation of trained models: selecting and freezing parameters by path, and LoRA.

Parameters are a model, its `nnx.State` or any pytree. Paths are written with dots, such as
"decoder.layers.blocks.0.self_attention.sublayer.query.kernel". Patterns are those of `fnmatch`: "*"
matches any characters, dots too.

Train some of the parameters by labels for optax:

    labels = label_parameters(model, {"*.norm.*": "train"}, default="freeze")
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

from attention.modules.numbers import check_number
from attention.primitives.choice import did_you_mean
from attention.primitives.numerics import score_dtype
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
        matching = {path: array for path, array in arrays.items() if fnmatchcase(path, pattern)}
        if not matching:
            hint = did_you_mean(pattern, arrays)
            raise ValueError(f"no parameter has a path that matches {pattern!r}{hint}")
        chosen |= matching
    return chosen


def label_parameters(
    parameters: Parameters, labels: Mapping[str, Label], *, default: Label
) -> Parameters:
    """Return the tree of parameters with a label in place of each array.

    Strings are labels for `optax.multi_transform`, bools for `optax.masked`.

    Args:
        parameters: a model or another pytree; of a model the state is labelled, since optax would
            call a model to get its labels.
        labels: pattern -> label; the first pattern that matches a path decides.
        default: label of the other parameters.

    Raises:
        ValueError: a pattern that matches no path.
    """
    parameters = nnx.state(parameters) if isinstance(parameters, nnx.Module) else parameters
    select_parameters(parameters, *labels)

    def label(path: str, *_: object) -> Label:
        matching = (label for pattern, label in labels.items() if fnmatchcase(path, pattern))
        return next(matching, default)

    return _map_arrays(label, parameters)


@pytree_dataclass
class LoRAFactors:
    """Low-rank change of one kernel: scale · down · up (Hu et al. 2021, section 4.1).

    Attributes:
        down: `[*stacked, inputs, r]`: all axes of inputs are one, behind those of stacked layers.
        up: `[*stacked, r, outputs]`.
        scale: alpha / r.
    """

    down: Array
    up: Array
    scale: float = static()


def lora_factors(
    parameters: Parameters, *patterns: str, rank: int, alpha: float | None = None, rng: Array
) -> dict[str, LoRAFactors]:
    """Make LoRA factors of kernels, by path; the change is 0 at first.

    The inputs of a matrix are its first axis, and those of other kernels its first "num_inputs"
    axes after those of stacked layers, by metadata as that of `linear`. Patterns may match other
    parameters too, such as biases and embeddings, which get no factors. Dicts of several calls may
    be merged.

    Args:
        parameters: a model or another pytree.
        patterns: of the paths of kernels.
        rank: r.
        alpha: scale times r; r if None.
        rng: random key of `down`, normal with variance 1 / inputs; `up` is 0.

    Raises:
        ValueError: a pattern that matches no kernel; a kernel of several axes without metadata; a
            rank that is not between 1 and the sizes of the kernel; an alpha that is not above 0.
    """
    check_number("alpha", alpha, above=0)
    chosen = select_parameters(parameters, *patterns)
    # Shapes: of stacked layers, number of inputs, number of outputs.
    kernels: dict[str, tuple[tuple[int, ...], int, int]] = {}

    def add(path: str, array: Array, metadata: Mapping[str, Any]) -> None:
        if path not in chosen:
            return
        is_matrix = "axes" not in metadata and array.ndim == 2
        count = metadata.get("num_inputs", int(is_matrix))
        if not count and "axes" not in metadata and array.ndim > 2:
            axes = f"axes of {path}, {array.shape}"
            raise ValueError(f"cannot split the {axes}, into inputs and outputs: no num_inputs")
        if count:
            num_axes = len(metadata.get("axes", array.shape)) - metadata.get("num_named", 0)
            begin = array.ndim - num_axes
            stacked, own = array.shape[:begin], array.shape[begin:]
            kernels[path] = stacked, math.prod(own[:count]), math.prod(own[count:])

    _map_arrays(add, parameters)
    for pattern in patterns:
        if not kernels.keys() & select_parameters(chosen, pattern):
            raise ValueError(f"no kernel has a path that matches {pattern!r}")
    factors, rngs = {}, jax.random.split(rng, len(kernels))
    for (path, (stacked, inputs, outputs)), rng in zip(sorted(kernels.items()), rngs, strict=True):
        largest = min(inputs, outputs)
        if not 1 <= rank <= largest:
            raise ValueError(f"the rank of {path} must lie in 1 to {largest}, got {rank}")
        dtype = score_dtype(chosen[path])
        down = jax.random.normal(rng, (*stacked, inputs, rank), dtype) * inputs**-0.5
        up = jnp.zeros((*stacked, rank, outputs), dtype)
        factors[path] = LoRAFactors(down, up, scale=(rank if alpha is None else alpha) / rank)
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
        change = factors[path].scale * (factors[path].down @ factors[path].up)
        shape, begin = kernel.shape, change.ndim - 2
        splits = [(shape[begin:end], shape[end:]) for end in range(begin + 1, kernel.ndim)]
        if change.shape not in [(*shape[:begin], *map(math.prod, split)) for split in splits]:
            raise ValueError(f"{path} has shape {kernel.shape}, its LoRA factors {change.shape}")
        changed = kernel.astype(change.dtype) + change.reshape(kernel.shape)
        return changed.astype(kernel.dtype)

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

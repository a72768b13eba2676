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
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

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
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path in arrays):
            near = get_close_matches(pattern, arrays, n=1, cutoff=0)
            hint = f"; the nearest is {near[0]!r}" if near else ""
            raise ValueError(f"no parameter has a path that matches {pattern!r}{hint}")
    return {
        path: array
        for path, array in arrays.items()
        if any(fnmatchcase(path, pattern) for pattern in patterns)
    }


def label_parameters(
    parameters: Parameters, labels: Mapping[str, Label], *, default: Label
) -> Parameters:
    """Return the tree of parameters with a label in place of each array.

    Strings are labels for `optax.multi_transform`, bools for `optax.masked`.

    Args:
        parameters: a model or another pytree.
        labels: pattern -> label; the first pattern that matches a path decides.
        default: label of the other parameters.

    Raises:
        ValueError: a pattern that matches no path.
    """
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
    matrices. Dicts of several calls may be merged.

    Args:
        parameters: a model or another pytree.
        patterns: of the paths of kernels.
        rank: r.
        alpha: scale times r; r if None.
        num_inputs: number of input axes of each kernel.
        num_stacked: number of axes of stacked layers in front of them.
        rng: random key of `down`, normal with variance 1 / inputs; `up` is 0.

    Raises:
        ValueError: a pattern that matches no path; a kernel of several axes of which it is not
            known which are inputs; a rank that is not between 1 and the sizes of the kernel.
    """
    chosen = sorted(select_parameters(parameters, *patterns))
    rngs = dict(zip(chosen, jax.random.split(rng, len(chosen)), strict=True))
    factors = {}

    def make(path: str, kernel: Array, metadata: Mapping[str, Any]) -> None:
        if path not in rngs:
            return
        stacked, inputs, outputs = _split_shape(path, kernel, metadata, num_inputs, num_stacked)
        largest = min(math.prod(inputs), math.prod(outputs))
        if not 1 <= rank <= largest:
            raise ValueError(f"the rank of {path} must lie in 1 to {largest}, got {rank}")
        dtype = jnp.float64 if kernel.dtype == jnp.float64 else jnp.float32
        down = jax.random.normal(rngs[path], (*stacked, *inputs, rank), dtype)
        factors[path] = LoRAFactors(
            down=down * math.prod(inputs) ** -0.5,
            up=jnp.zeros((*stacked, rank, *outputs), dtype),
            num_stacked=len(stacked),
            scale=(rank if alpha is None else alpha) / rank,
        )

    _map_arrays(make, parameters)
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

    def replace(keys: jax.tree_util.KeyPath, leaf: nnx.Variable | Array) -> Any:  # noqa: ANN401
        path = jax.tree_util.keystr(keys, simple=True, separator=".")
        metadata = leaf.get_metadata() if isinstance(leaf, nnx.Variable) else {}
        return jax.tree.map(lambda array: function(path, array, metadata), leaf)

    return jax.tree_util.tree_map_with_path(
        replace, parameters, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )


def _split_shape(
    path: str,
    kernel: Array,
    metadata: Mapping[str, Any],
    num_inputs: int | None,
    num_stacked: int | None,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the axes of stacked layers, of inputs and of outputs."""
    axes = metadata.get("axes")  # logical names, not of stacked layers
    if num_stacked is None:
        num_stacked = kernel.ndim - len(axes) if axes else 0
    if num_inputs is None:
        is_matrix = not axes and kernel.ndim - num_stacked == 2
        num_inputs = 1 if is_matrix else metadata.get("num_inputs")
    if num_inputs is None or num_inputs < 1 or num_stacked + num_inputs >= kernel.ndim:
        raise ValueError(
            f"cannot split the axes of {path}, {kernel.shape}: pass num_inputs, and num_stacked if "
            "it is of several layers"
        )
    shape = kernel.shape
    first_output = num_stacked + num_inputs
    return shape[:num_stacked], shape[num_stacked:first_output], shape[first_output:]

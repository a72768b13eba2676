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
import re
from collections.abc import Callable, Collection, Iterable, Mapping
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


Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Sizes of the axes of stacked layers, of inputs and of outputs."""

_CANNOT_SPLIT = (
    "cannot split the axes of {}, {}, into inputs and outputs: pass a kernel, or num_inputs, and "
    "num_stacked if it is of several layers"
)


def select_parameters(parameters: Parameters, *patterns: str) -> dict[str, Array]:
    """Return the arrays whose path matches one of the patterns, by path.

    Raises:
        ValueError: a pattern that matches no path.
    """
    arrays: dict[str, Array] = {}
    _map_arrays(lambda path, array, _: arrays.update({path: array}), parameters)
    for pattern in patterns:
        if not _matching(arrays, pattern):
            hint = _nearest_pattern(pattern, arrays)
            raise ValueError(f"no parameter has a path that matches {pattern!r}{hint}")
    return {path: array for path, array in arrays.items() if _matches(path, patterns)}


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
    shapes: dict[str, Shapes] = {}

    def split(path: str, kernel: Array, metadata: Mapping[str, Any]) -> None:
        if path in chosen:
            found = _split_shape(path, kernel, metadata, num_inputs, num_stacked)
            shapes.update({} if found is None else {path: found})

    _map_arrays(split, parameters)
    for pattern in patterns:
        if not _matching(shapes, pattern):
            path = _matching(chosen, pattern)[0]
            raise ValueError(_CANNOT_SPLIT.format(path, chosen[path].shape))
    rngs = jax.random.split(rng, len(shapes))
    factors = {}
    for (path, (stacked, inputs, outputs)), rng in zip(sorted(shapes.items()), rngs, strict=True):
        largest = min(math.prod(inputs), math.prod(outputs))
        if not 1 <= rank <= largest:
            raise ValueError(f"the rank of {path} must lie in 1 to {largest}, got {rank}")
        dtype = jnp.float64 if chosen[path].dtype == jnp.float64 else jnp.float32
        down = jax.random.normal(rng, (*stacked, *inputs, rank), dtype)
        factors[path] = LoRAFactors(
            down=down * math.prod(inputs) ** -0.5,
            up=jnp.zeros((*stacked, rank, *outputs), dtype),
            num_stacked=len(stacked),
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


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _matching(paths: Iterable[str], pattern: str) -> list[str]:
    return [path for path in paths if fnmatchcase(path, pattern)]


def _nearest_pattern(pattern: str, paths: Collection[str]) -> str:
    """Return a hint that names a similar pattern that matches a path, if there is one."""
    names = {name for path in paths for name in path.split(".")}

    def nearest(match: re.Match[str]) -> str:
        near = get_close_matches(match[0], names, n=1)
        return near[0] if near else match[0]

    for near in (pattern, re.sub(r"\w+", nearest, pattern)):
        for each in (near, f"*{near}", f"{near}*", f"*{near}*"):
            if _matching(paths, each):
                return f"; did you mean {each!r}?"
    return f"; a path is, for instance, {min(paths)!r}" if paths else ""


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


def _split_shape(
    path: str,
    kernel: Array,
    metadata: Mapping[str, Any],
    num_inputs: int | None,
    num_stacked: int | None,
) -> Shapes | None:
    """Return the sizes of stacked layers, of inputs and of outputs; None for another parameter.

    Raises:
        ValueError: several axes without metadata.
    """
    axes = metadata.get("axes")  # logical names, not of stacked layers
    if num_stacked is None:
        num_stacked = kernel.ndim - len(axes) if axes else 0
    if num_inputs is None:
        is_matrix = not axes and kernel.ndim - num_stacked == 2
        num_inputs = 1 if is_matrix else metadata.get("num_inputs")
    if num_inputs is None and not axes and kernel.ndim - num_stacked > 2:
        raise ValueError(_CANNOT_SPLIT.format(path, kernel.shape))
    if num_inputs is None or num_inputs < 1 or num_stacked + num_inputs >= kernel.ndim:
        return None
    shape = kernel.shape
    first_output = num_stacked + num_inputs
    return shape[:num_stacked], shape[num_stacked:first_output], shape[first_output:]

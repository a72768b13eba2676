"""Frozen dataclasses that are pytrees: the form of masks, scores, caches and arguments.

Each array field declares its rank for one example; further leading axes are batch axes.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import jax
from jax import Array

Node = TypeVar("Node")

static = functools.partial(field, metadata={"static": True})


def array_field(rank: int) -> Any:  # noqa: ANN401 - typed as the field it makes
    """Declare a field that contains an array of this rank per example, plus any batch axes."""
    return field(metadata={"rank": rank})


def pytree_dataclass(cls: type[Node]) -> type[Node]:
    """Make a class a frozen dataclass and a pytree, compared by identity."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True, eq=False)(cls))


def map_arrays(tree: Node, function: Callable[[Array, int], Any]) -> Node:
    """Replace every array by `function(array, rank for one example)`.

    Args:
        tree: a pytree dataclass, or a tuple of them; None is returned unchanged.
        function: of an array and its rank.
    """
    if tree is None:
        return None
    if isinstance(tree, tuple):
        return tuple(map_arrays(part, function) for part in tree)
    changed = {}
    for part in fields(tree):
        value = getattr(tree, part.name)
        if value is None or "static" in part.metadata:
            continue
        if "rank" in part.metadata:
            changed[part.name] = function(value, part.metadata["rank"])
        elif hasattr(tree, "ranks"):  # the arrays of a function
            changed[part.name] = tuple(map(function, value, tree.ranks))
        else:
            changed[part.name] = map_arrays(value, function)
    return replace(tree, **changed)


def arrays_of(tree: object) -> list[tuple[Array, int]]:
    """Return every array in the tree with its rank for one example."""
    found = []
    map_arrays(tree, lambda array, rank: found.append((array, rank)))
    return found


def batch_shapes(tree: object) -> list[tuple[int, ...]]:
    """Return the batch axes of each array in the tree."""
    return [array.shape[: array.ndim - rank] for array, rank in arrays_of(tree)]


def replace_leaves(tree: Node, numbers: Sequence[int], values: Iterable[Array]) -> Node:
    """Return a pytree with other arrays in place of its leaves of some numbers."""
    leaves, structure = jax.tree.flatten(tree)
    for number, value in zip(numbers, values, strict=True):
        leaves[number] = value
    return jax.tree.unflatten(structure, leaves)

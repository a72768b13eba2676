"""Frozen dataclasses that are pytrees: the form of masks, scores and caches.

Each array field declares its rank for one example; further leading axes are batch axes.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
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


def arrays_of(tree: object) -> Iterator[tuple[Array, int]]:
    """Yield every array in the tree with its rank for one example."""
    for part in fields(tree):
        value = getattr(tree, part.name)
        if "rank" in part.metadata:
            yield value, part.metadata["rank"]
        elif "static" not in part.metadata and is_dataclass(value):
            yield from arrays_of(value)
        elif "static" not in part.metadata:
            yield from zip(value, tree.ranks, strict=True)  # the arrays of a function


def map_arrays(tree: Node, function: Callable[[Array, int], Any]) -> Node:
    """Replace every array by `function(array, rank for one example)`."""
    changed = {}
    for part in fields(tree):
        value = getattr(tree, part.name)
        if "rank" in part.metadata:
            changed[part.name] = function(value, part.metadata["rank"])
        elif "static" not in part.metadata and is_dataclass(value):
            changed[part.name] = map_arrays(value, function)
        elif "static" not in part.metadata:
            changed[part.name] = tuple(map(function, value, tree.ranks))
    return replace(tree, **changed)


def batch_shapes(tree: object) -> list[tuple[int, ...]]:
    """Return the batch axes of each array in the tree."""
    return [array.shape[: array.ndim - rank] for array, rank in arrays_of(tree)]

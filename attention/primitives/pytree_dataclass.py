"""Frozen dataclasses that are pytrees: the form of masks, scores, caches and arguments.

Each array field declares its axes for one example; further leading axes are batch axes. The letters
T, S, N and K are the axes of `attend`, t and s those that positions index; any other letter is an
axis that nothing maps over or cuts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar

import jax
from jax import Array

Node = TypeVar("Node")

static = partial(field, metadata={"static": True})


def array_field(axes: str, **default: Any) -> Any:  # noqa: ANN401 - typed as the field it makes
    """Declare a field that contains an array with these axes per example, plus any batch axes."""
    return field(metadata={"axes": axes}, **default)


def pytree_dataclass(cls: type[Node]) -> type[Node]:
    """Make a class a frozen dataclass and a pytree, compared by identity."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True, eq=False)(cls))


def map_arrays(tree: Node, function: Callable[[Array, str], Any]) -> Node:
    """Replace every array by `function(array, axes for one example)`.

    The tree is a pytree dataclass, a tuple of them, or None.
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
        if "axes" in part.metadata:
            changed[part.name] = function(value, part.metadata["axes"])
        elif hasattr(tree, "ranks"):  # the arrays of a function
            axes = ("." * rank for rank in tree.ranks)
            changed[part.name] = tuple(map(function, value, axes))
        else:
            changed[part.name] = map_arrays(value, function)
    return replace(tree, **changed)


def arrays_of(tree: object) -> list[tuple[Array, str]]:
    """Return every array in the tree with its axes for one example, in the order of the leaves."""
    found = []
    map_arrays(tree, lambda array, axes: found.append((array, axes)))
    return found


def join(tree: Node, other: Node) -> Node:
    """Return the tree with the arrays of another one in place of None."""
    return jax.tree.map(
        lambda x, y: y if x is None else x, tree, other, is_leaf=lambda x: x is None
    )


def batch_shapes(tree: object) -> list[tuple[int, ...]]:
    """Return the batch axes of each array in the tree."""
    return [array.shape[: array.ndim - len(axes)] for array, axes in arrays_of(tree)]

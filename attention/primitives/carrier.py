"""Frozen dataclasses that carry arrays through jit, vmap and grad: what masks and scores are.

Each array field says its rank for one example; whatever axes stand in front are batch axes. Fields
that are other pytrees carry arrays for all examples alike.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

Carrier = TypeVar("Carrier")

static = functools.partial(field, metadata={"static": True})


def array_field(rank: int) -> Any:  # noqa: ANN401 - typed as the field it makes
    """A field that holds an array of this rank for one example, with any leading axes."""
    return field(metadata={"rank": rank})


def carrier(cls: type[Carrier]) -> type[Carrier]:
    """A frozen dataclass that is a pytree; compared by identity, since arrays have no one truth."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True, eq=False)(cls))


def arrays(tree: object) -> Iterator[tuple[Array, int]]:
    """Every array inside, with its rank for one example."""
    for part in fields(tree):
        value = getattr(tree, part.name)
        if "rank" in part.metadata:
            yield value, part.metadata["rank"]
        elif is_dataclass(value):
            yield from arrays(value)
        elif not part.metadata.get("static"):
            yield from ((leaf, jnp.ndim(leaf)) for leaf in jax.tree.leaves(value))


def map_arrays(tree: Carrier, function: Callable[[Array, int], Array]) -> Carrier:
    """Applies a function of (array, its rank for one example) to every array inside."""
    changed = {}
    for part in fields(tree):
        value = getattr(tree, part.name)
        if "rank" in part.metadata:
            changed[part.name] = function(value, part.metadata["rank"])
        elif is_dataclass(value):
            changed[part.name] = map_arrays(value, function)
        elif not part.metadata.get("static"):
            changed[part.name] = jax.tree.map(lambda leaf: function(leaf, jnp.ndim(leaf)), value)
    return replace(tree, **changed)

"""One tile: its scores, who may attend to whom in it, and what dropout keeps of it."""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from attention.primitives.dropout import keep_pairs
from attention.primitives.masks import Mask
from attention.primitives.scores import Score
from attention.primitives.tiled.sweep import Cut

einsum = partial(jnp.einsum, precision="highest")


class Given(NamedTuple):
    """The arrays of a request that have derivatives.

    query `[B, T, K, G, H]`, scaled; key `[B, K, H, S]`; value `[B, K, Hv, S]`; scores, with two
    leading axes for each array inside, None in place of a bias array; those bias arrays, `[B, K,
    T, G, S]`. The leading axes may be 1. In a tile, all without them.
    """

    query: Array
    key: Array
    value: Array
    scores: tuple[Score | None, ...]
    biases: tuple[Array | None, ...]

    def cuts(self) -> dict[str, Cut]:
        """Along what each is cut."""
        along = ("row", "column", "column", "whole", "pair")
        return dict(zip(self._fields, zip(along, self, strict=True), strict=True))


class Fixed(NamedTuple):
    """The arrays of a request that have no derivatives; None where there is nothing to say.

    query_positions `[B, T, 1]`; key_positions `[B, 1, S]`; is_key `[1, 1, S]`, false where S was
    filled up; predicate, a mask with two leading axes for each array inside; pairs `[B, 1, T, S]`,
    a mask that is a bool array; heads `[1, K, G]`; words `[B, 1, W]`, the data of the dropout key.
    The leading axes may be 1. In a tile, all without them.
    """

    query_positions: Array
    key_positions: Array
    is_key: Array | None
    predicate: Mask | None
    pairs: Array | None
    heads: Array
    words: Array | None

    def cuts(self) -> dict[str, Cut]:
        """Along what each is cut."""
        along = ("row", "column", "column", "whole", "pair", "whole", "whole")
        return dict(zip(self._fields, zip(along, self, strict=True), strict=True))

    def places(self) -> tuple[Array, Array, Array]:
        """Query positions, key positions and heads that broadcast to a tile `[T, G, S]`."""
        query, key = self.query_positions[:, None, None], self.key_positions[None, None, :]
        return query, key, self.heads[None, :, None]


def split(tiles: dict[str, Any]) -> tuple[Given, Fixed]:
    """The tiles of `cuts`, again as they were."""
    return Given(*(tiles[name] for name in Given._fields)), split_fixed(tiles)


def split_fixed(tiles: dict[str, Any]) -> Fixed:
    """The part of `split` that has no derivative."""
    return Fixed(*(tiles[name] for name in Fixed._fields))


def allowed_in(fixed: Fixed) -> Array:
    """Who may attend to whom: bool `[T, 1, S]` or one that broadcasts to it."""
    allowed = jnp.ones((1, 1, 1), bool)
    if fixed.is_key is not None:
        allowed = allowed & fixed.is_key[None, None, :]
    if fixed.pairs is not None:
        allowed = allowed & fixed.pairs[:, None, :]
    if fixed.predicate is not None:
        query, key, _ = fixed.places()
        allowed = allowed & fixed.predicate(query, key)
    return allowed


def products_in(given: Given) -> Array:
    """The scaled products of query and key, `[T, G, S]`."""
    return einsum("TGH,HS->TGS", given.query, given.key)


def scores_of(products: Array, given: Given, fixed: Fixed, masked: bool) -> Array:
    """The scores `[T, G, S]`, -inf where a tile that is `masked` forbids a pair."""
    scores = products
    for score, bias in zip(given.scores, given.biases, strict=True):
        scores = score(scores, *fixed.places()) if bias is None else scores + bias
    return jnp.where(allowed_in(fixed), scores, -jnp.inf) if masked else scores


def scores_in(given: Given, fixed: Fixed, masked: bool) -> Array:
    """`scores_of` the products of query and key."""
    return scores_of(products_in(given), given, fixed, masked)


def weighted_sum(weights: Array, value: Array) -> Array:
    """Values `[Hv, S]` by weights `[T, G, S]`: `[T, G, Hv]`."""
    return einsum("TGS,VS->TGV", weights, value)


def keep_in(fixed: Fixed, dropout_rate: float) -> Array | None:
    """What dropout multiplies the weights by, `[T, G, S]`; None without dropout."""
    if fixed.words is None:
        return None
    query, key, head = fixed.places()
    return keep_pairs(fixed.words[:, None, None, None], dropout_rate, head, query, key)

"""Attention with learned projections: one module for self- and cross-attention."""

from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.config import resolve_head_width, resolve_kv_heads
from attention.modules.linear import LinearGeneral
from attention.modules.norm import NORMS
from attention.primitives.attend import attend
from attention.primitives.cache import Cache, full_cache
from attention.primitives.choice import one_of
from attention.primitives.dropout import Dropout
from attention.primitives.masks import Mask
from attention.primitives.scores import Score


class Attention(nnx.Module):
    """Projects inputs to queries, a memory to keys and values, attends, and projects back.

    The memory is the input itself (self-attention) unless another is given (cross-attention).
    """

    def __init__(
        self,
        width: int,
        *,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_width: int | None = None,
        value_width: int | None = None,
        memory_width: int | None = None,
        use_bias: bool = True,
        qk_norm: str = "none",
        turn: Callable[[Array, Array], Array] | None = None,
        implementation: str | None = None,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the four projections and the norms of queries and keys.

        Args:
            width: D, of the inputs and the outputs.
            num_heads: N.
            num_kv_heads: K, N by default; must divide N.
            head_width: H of queries and keys, D / N by default.
            value_width: Hv, H by default.
            memory_width: width of the memory, D by default.
            use_bias: whether the projections add a bias.
            qk_norm: "none", or the norm of queries and keys over H: "layer" or "rms".
            turn: turns queries and keys `[..., T, N, H]` by their positions `[..., T]`, as
                `attention.rotary` does; hashable.
            implementation: as in `attention.attend`.
            dropout: rate on the attention weights.
            rngs: source of the initial parameters.

        Raises:
            ValueError: N not divisible by K, D not by N where H is not given, a rate outside
                [0, 1), or an unknown norm.
        """
        one_of("qk_norm", qk_norm, ("none", *NORMS))
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        num_kv_heads = resolve_kv_heads(num_heads, num_kv_heads)
        head_width = resolve_head_width(width, num_heads, head_width)
        value_width = head_width if value_width is None else value_width
        memory_width = width if memory_width is None else memory_width

        def heads(features: int, number: int, head_features: int) -> nnx.LinearGeneral:
            shape = (number, head_features)
            return LinearGeneral(features, shape, use_bias=use_bias, rngs=rngs)

        self.query = heads(width, num_heads, head_width)
        self.key = heads(memory_width, num_kv_heads, head_width)
        self.value = heads(memory_width, num_kv_heads, value_width)
        self.output = LinearGeneral(
            (num_heads, value_width), width, axis=(-2, -1), use_bias=use_bias, rngs=rngs
        )
        norm = NORMS.get(qk_norm)
        self.query_norm = norm and norm(head_width, rngs=rngs)
        self.key_norm = norm and norm(head_width, rngs=rngs)
        self.turn = turn
        self.implementation = implementation
        self.dropout = dropout

    def __call__(
        self,
        inputs: Array,
        memory: Array | Cache | None = None,
        *,
        mask: Mask | Array | None = None,
        score: Score | Collection[Score] = (),
        positions: tuple[Array, Array] | None = None,
        key: Array | None = None,
        cache: Cache | None = None,
        lengths: Array | None = None,
        returning: Collection[str] = (),
    ) -> tuple[Array, dict[str, Array]] | tuple[Array, dict[str, Array], Cache]:
        """Attends from the inputs to the memory.

        Args:
            inputs: `[..., T, D]`.
            memory: `[..., S, memory_width]`, or what `remember` made of it; the inputs by default.
            mask: as in `attention.attend`; beside a cache a `Mask`.
            score: as in `attention.attend`.
            positions: as in `attention.attend`.
            key: random key for dropout, none without.
            cache: keys and values of what stands before the inputs, which are counted from there.
            lengths: with a cache, `[...]`: how many of the T inputs of each row are no padding.
            returning: as in `attention.attend`.

        Returns:
            `[..., T, D]`, and a dict with what was asked for in `returning`; with a cache, the new
            cache too.

        Raises:
            ValueError: a memory or positions beside a cache, lengths without one; and as `attend`.
        """
        if cache is None and lengths is not None:
            raise ValueError("lengths says how much a cache shall read, and no cache is given")
        if cache is not None:
            if memory is not None or positions is not None:
                raise ValueError(
                    "a cache holds the keys of the inputs and knows where they stand: it takes "
                    "neither memory nor positions beside it"
                )
            counted = cache.next_positions(inputs.shape[-2])
            positions = counted, counted
        query, key_heads, value = self._project(inputs, memory, positions)
        nonfinite_keys = memory.nonfinite_keys if isinstance(memory, Cache) else None
        if cache is not None:
            cache, view = cache.extend(key_heads, value, lengths)
            key_heads, value, nonfinite_keys = view.key, view.value, view.nonfinite_keys
            positions = counted, view.positions
            mask = view.mask if mask is None else view.mask & mask
        dropout = None
        if key is not None and self.dropout:  # a key for each example: each drops its own pairs
            dropout = Dropout(jax.random.split(key, inputs.shape[:-2]), self.dropout)
        attended = attend(
            query,
            key_heads,
            value,
            mask=mask,
            score=score,
            positions=positions,
            dropout=dropout,
            returning=returning,
            nonfinite_keys=nonfinite_keys,
            implementation=self.implementation,
        )
        attended, extras = attended if returning else (attended, {})
        output = self.output(attended)
        return (output, extras) if cache is None else (output, extras, cache)

    def remember(self, memory: Array, positions: Array | None = None) -> Cache:
        """Keys and values of a memory, computed once to be attended to often.

        Args:
            memory: `[..., S, memory_width]`.
            positions: `[..., S]`, counted from 0 by default.

        Returns:
            Keys `[..., S, K, H]` and values `[..., S, K, Hv]`.
        """
        key, value = self._keys(memory), self.value(memory)
        if self.turn is not None:
            key = self.turn(key, jnp.arange(memory.shape[-2]) if positions is None else positions)
        return full_cache(key, value)

    def _project(
        self,
        inputs: Array,
        memory: Array | Cache | None,
        positions: tuple[Array, Array] | None,
    ) -> tuple[Array, Array, Array]:
        remembered = isinstance(memory, Cache)
        memory = inputs if memory is None else memory
        query = self.query(inputs)
        query = query if self.query_norm is None else self.query_norm(query)
        key = memory.key if remembered else self._keys(memory)
        value = memory.value if remembered else self.value(memory)
        if self.turn is not None:
            query_positions, key_positions = _standing(query, key, positions)
            query = self.turn(query, query_positions)
            key = key if remembered else self.turn(key, key_positions)
        return query, key, value

    def _keys(self, memory: Array) -> Array:
        key = self.key(memory)
        return key if self.key_norm is None else self.key_norm(key)


def _standing(
    query: Array, key: Array, positions: tuple[Array, Array] | None
) -> tuple[Array, Array]:
    if positions is not None:
        return positions
    num_queries, num_keys = query.shape[-3], key.shape[-3]
    if num_queries != num_keys:
        raise ValueError(
            f"{num_queries} queries and {num_keys} keys leave open where they stand: "
            "rotary positions need positions=(query_positions, key_positions)"
        )
    return jnp.arange(num_queries), jnp.arange(num_keys)

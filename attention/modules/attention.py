"""Attention with learned projections: to the inputs themselves, and to the output of an encoder."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from attention.modules.config import TransformerConfig
from attention.modules.context import DEFAULT_CONTEXT, CacheSpec, Context, Output, and_mask
from attention.modules.layers import LECUN_NORMAL, NORMS, linear, named
from attention.modules.numbers import check_count, check_number, check_rate, resolve_heads
from attention.primitives import masks, scores
from attention.primitives.cache import EMPTY_SLOT, Cache, Constant, empty_cache, full_cache
from attention.primitives.dropout import Dropout
from attention.primitives.masks import FromArray, Mask, leaves_of
from attention.primitives.scores import Score


class Attention(nnx.Module):
    """Projections around `attention.attend`, the base of `SelfAttention` and `CrossAttention`."""

    def __init__(
        self,
        width: int,
        *,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_width: int | None = None,
        value_width: int | None = None,
        source_width: int | None = None,
        use_bias: bool = True,
        qkv_bias: bool | None = None,
        qk_norm: str | Callable[..., Callable[[Array], Array]] | None = None,
        norm_epsilon: float = 1e-6,
        scale: float | None = None,
        softcap: float | None = None,
        score: Callable[[], Score] | None = None,
        dropout: float = 0.0,
        precision: str | None = None,
        implementation: str | None = None,
        kernel_init: Initializer = LECUN_NORMAL,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        """Make the projections.

        The arguments are fields of `TransformerConfig` (`scale` and `dropout` are those that begin
        with "attention"), `precision` of `attention.attend`, and

        - `source_width`: width of the vectors that are attended to, D if None;
        - `qk_norm` over H (Dehghani et al. 2023, section 2);
        - `softcap`: bound c of the scores, c·tanh(scores / c), after all score functions;
        - `score`: returns a score function of this layer, applied after those of the context; a
          module if it has parameters;
        - `rngs`: source of the initial parameters.

        Raises:
            ValueError: N not divisible by K, D not by N without `head_width`, a number out of
                range, or an unknown norm.
        """
        num_kv_heads, head_width = resolve_heads(width, num_heads, num_kv_heads, head_width)
        check_count("value_width", value_width, at_least=1)
        check_number("scale", scale, above=0)
        check_number("softcap", softcap, above=0)
        check_rate("dropout", dropout)
        if isinstance(score, Score):
            got = type(score).__name__
            raise TypeError(f"score must be a function that returns a score function, got a {got}")
        value_width = head_width if value_width is None else value_width
        qkv_bias = use_bias if qkv_bias is None else qkv_bias
        source = {"embed": width} if source_width is None else {"source": source_width}
        inputs, query = {"embed": width}, {"heads": num_heads, "head": head_width}
        key, value = ({"kv_heads": num_kv_heads, "head": H} for H in (head_width, value_width))
        options = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        make = partial(linear, kernel_init=kernel_init, **options)
        self.query = make(inputs, query, use_bias=qkv_bias)
        self.key = make(source, key, use_bias=qkv_bias)
        self.value = make(source, value, use_bias=qkv_bias)
        self.output = make({"heads": num_heads, "head": value_width}, inputs, use_bias=use_bias)
        options |= {"epsilon": norm_epsilon, "axis": "head"}
        make_norm = named("qk_norm", qk_norm, "NORMS", NORMS) if qk_norm else None
        self.query_norm = make_norm and make_norm(head_width, **options)
        self.key_norm = make_norm and make_norm(head_width, **options)
        self.score = score
        self.scale, self.softcap = scale, softcap
        self.dropout = dropout
        self.precision, self.implementation = precision, implementation

    @classmethod
    def from_config(cls, config: TransformerConfig, *, rngs: nnx.Rngs, **options: object) -> Self:
        """Make the attention of a block; other arguments are passed on."""
        names = "num_heads", "num_kv_heads", "head_width", "value_width", "use_bias", "qkv_bias"
        names += "qk_norm", "norm_epsilon", "softcap", "implementation"
        return cls(
            config.width,
            scale=config.attention_scale,
            dropout=config.attention_dropout,
            **{name: getattr(config, name) for name in names},
            **config.linear_options(rngs),
            **options,
        )

    def _query(self, inputs: Array, context: Context) -> Array:
        query = self.query(inputs)
        query = query if self.query_norm is None else self.query_norm(query)
        return context.shard(query, "sequence", "heads", "head")

    def _keys_and_values(self, source: Array | None, context: Context) -> tuple[Array, Array]:
        if not hasattr(source, "dtype"):
            raise ValueError("cross-attention needs an encoder_output, an array `[..., S, D]`")
        key, value = self.key(source), self.value(source)
        key = key if self.key_norm is None else self.key_norm(key)
        return tuple(context.shard(x, "sequence", "kv_heads", "head") for x in (key, value))

    def _attend(
        self, context: Context, query: Array, *keys_and_values: object, **options: object
    ) -> Output:
        """Attend with the options of this layer and others of `attend`; project the result."""
        dropout = None
        if context.rng is not None and self.dropout:  # each example has its own key
            dropout = Dropout(jax.random.split(context.rng, query.shape[:-3]), self.dropout)
        attended = context.attend(
            query,
            *keys_and_values,
            scale=self.scale,
            dropout=dropout,
            returning=[name for name in context.returning if name != "hidden_states"],
            precision=self.precision,
            implementation=self.implementation,
            **options,
        )
        attended, results = attended if isinstance(attended, tuple) else (attended, None)
        attended = context.shard(attended, "sequence", "heads", "head")
        return Output(self.output(attended), attention=results, cache=context.cache)

    def _scores(self) -> tuple[Score, ...]:
        """Return the score functions of this layer."""
        own = () if self.score is None else (self.score(),)
        return own if self.softcap is None else (*own, scores.softcap(self.softcap))


class SelfAttention(Attention):
    """Attention from the inputs to themselves and, with a cache, to the tokens before them."""

    def __init__(
        self,
        width: int,
        *,
        rotary: Callable[[Array, Array], Array] | None = None,
        window: int | None = None,
        **options: object,
    ) -> None:
        """Make the projections, with the options of `Attention`.

        Args:
            width: D.
            rotary: rotates queries and keys `[..., T, N, H]` by their positions `[..., T]`, such as
                `Rotary(base=10_000)`; layers that are scanned together need equal ones.
            window: as in `TransformerConfig`, at least 0.
            options: as in `Attention`.
        """
        check_count("window", window, at_least=0)
        super().__init__(width, **options)
        self.rotary, self.window = rotary, window

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map inputs `[..., T, D]` to `[..., T, D]`.

        With a cache the mask is causal unless the context has one. Errors are those of
        `attention.attend` and `Cache.extend`.
        """
        cache, positions, mask = context.cache, context.positions, context.mask
        query, (key, value) = self._query(inputs, context), self._keys_and_values(inputs, context)

        num_tokens = inputs.shape[-2]
        if cache is not None:
            positions = cache.next_positions(num_tokens)
        if self.rotary is not None:
            counted = _counted(positions, num_tokens)
            query, key = self.rotary(query, counted), self.rotary(key, counted)

        pair_positions = None if positions is None else (positions, positions)
        if cache is not None:
            mask = masks.causal() if mask is None else _cached_mask(mask, cache)
        elif context.lengths is not None and positions is None:
            mask = and_mask(masks.lengths(context.lengths), mask)
        elif context.lengths is not None:  # which count tokens, whatever their positions
            pair_positions = positions, jnp.where(context.valid(num_tokens), positions, EMPTY_SLOT)
            mask = and_mask(masks.full(), mask)  # every position but EMPTY_SLOT
        if self.window is not None:
            mask = and_mask(masks.window(self.window, self.window), mask)

        options = {"mask": mask, "score": (*context.score, *self._scores())}
        if cache is None:
            return self._attend(context, query, key, value, positions=pair_positions, **options)
        cache, view = cache.extend(key, value, context.lengths)
        return self._attend(context, query, view, **options)._replace(cache=cache)

    def new_cache(self, spec: CacheSpec) -> Cache:
        """Return an empty cache; with a window shorter than its size, a ring of one window."""
        kernel, values = self.key.kernel, self.value.kernel
        size = spec.size if self.window is None else min(spec.size, self.window + 1)
        return empty_cache(
            spec.batch,
            size,
            num_kv_heads=kernel.shape[-2],
            head_width=kernel.shape[-1],
            value_width=values.shape[-1],
            dtype=spec.dtype or self.key.dtype or kernel.dtype,
            ring=spec.ring or size < spec.size,
        )


class CrossAttention(Attention):
    """Attention from the inputs to the encoder output of the context (`source_width` wide)."""

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map inputs `[..., T, D]` to `[..., T, D]`.

        Raises:
            ValueError: no encoder output, or one beside a cache, and as `attention.attend`.
        """
        context.check_source()
        query, cache, mask = self._query(inputs, context), context.cache, context.encoder_mask
        if cache is not None:
            cross_cache, encoder_positions = cache.value
            num_keys = cross_cache.size
        else:
            key, value = self._keys_and_values(context.encoder_output, context)
            encoder_positions, num_keys = context.encoder_positions, key.shape[-3]

        # `attend` needs positions for a mask that compares those of T queries and S != T keys.
        leaves = leaves_of(mask) if isinstance(mask, Mask) else ()
        compares = any(leaf.compares_positions for leaf in leaves)
        is_given = context.positions is not None or encoder_positions is not None
        positions, num_queries = None, query.shape[-3]
        if is_given or (compares and num_queries != num_keys):
            given, sizes = (context.positions, encoder_positions), (num_queries, num_keys)
            positions = tuple(map(_counted, given, sizes))
        options = {"mask": mask, "score": self._scores()}
        if cache is not None:
            return self._attend(context, query, cross_cache.view(positions), **options)
        return self._attend(context, query, key, value, positions=positions, **options)

    def new_cache(self, spec: CacheSpec) -> Constant:
        """Return the keys and values of the encoder output, a full `Cache`, and its positions."""
        key, value = self._keys_and_values(spec.encoder_output, Context(constrain=spec.constrain))
        if spec.dtype is not None:
            key, value = key.astype(spec.dtype), value.astype(spec.dtype)
        return Constant((full_cache(key, value), spec.encoder_positions))


def _counted(positions: Array | None, length: int) -> Array:
    """Return the positions of queries or keys, counted from 0 if None."""
    return jnp.arange(length, dtype=jnp.int32) if positions is None else positions


def _cached_mask(mask: Mask | Array, cache: Cache) -> Mask:
    """Return a mask as a predicate on positions; raise a ValueError for an array without some."""

    def by_position(leaf: Mask) -> Mask:
        if not isinstance(leaf, FromArray) or leaf.by_position:
            return leaf
        (rows, columns), size = leaf.array.shape[-2:], cache.size
        if rows != columns or (1 < columns < size and not cache.ring):
            raise ValueError(f"beside a cache a mask must be {[size, size]}, got {[rows, columns]}")
        return replace(leaf, by_position=True)

    return masks.map_leaves(masks.as_mask(mask), by_position)

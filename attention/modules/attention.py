"""Attention with learned projections: to the inputs themselves, and to the output of an encoder."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from attention.modules.context import (
    DEFAULT_CONTEXT,
    CacheSpec,
    Context,
    Output,
    and_mask,
    cached_mask,
    check_score,
    type_of,
)
from attention.modules.layers import LECUN_NORMAL, linear, norm_of
from attention.primitives import masks, scores
from attention.primitives.arguments import RETURNING
from attention.primitives.cache import (
    EMPTY_SLOT,
    Cache,
    CacheView,
    Constant,
    empty_cache,
    full_cache,
)
from attention.primitives.choice import one_of
from attention.primitives.dropout import Dropout
from attention.primitives.masks import Mask, leaves_of
from attention.primitives.scores import Score


def resolve_kv_heads(num_heads: int, num_kv_heads: int | None) -> int:
    """Return K, which is N unless given.

    Raises:
        ValueError: K does not divide N.
    """
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    divisors = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
    if num_kv_heads not in divisors:
        raise ValueError(
            f"num_heads={num_heads} cannot be shared evenly by num_kv_heads={num_kv_heads}: "
            f"use one of {', '.join(map(str, divisors))}"
        )
    return num_kv_heads


def resolve_head_width(width: int, num_heads: int, head_width: int | None) -> int:
    """Return H, which is D / N unless given.

    Raises:
        ValueError: D / N is no whole number.
    """
    if head_width is None:
        if width % num_heads:
            raise ValueError(
                f"width={width} is not divisible by num_heads={num_heads}: "
                "change one of them, or set head_width"
            )
        return width // num_heads
    if head_width < 1:
        raise ValueError(f"head_width must be at least 1, got {head_width}")
    return head_width


class Attention(nnx.Module):
    """Projections of queries, keys, values and outputs around `attention.attend`.

    It is the common part of `SelfAttention` and `CrossAttention`, which define what is attended to.
    """

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
        implementation: str | None = None,
        kernel_init: Initializer = LECUN_NORMAL,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        """Make the projections.

        Args:
            width: D, of the inputs and the outputs.
            num_heads: N.
            num_kv_heads: K, a divisor of N; N if None.
            head_width: H of queries and keys, D / N if None.
            value_width: Hv, H if None.
            source_width: width of the vectors that are attended to, D if None.
            use_bias: whether the projections add a bias.
            qkv_bias: the same for queries, keys and values alone; `use_bias` if None.
            qk_norm: norm of queries and keys over H (Dehghani et al. 2023, section 2): a function
                like `norms.layer_norm`, or its name in `NORMS`.
            norm_epsilon: of `qk_norm`.
            scale: factor of the products of queries and keys, 1/√H if None.
            softcap: bound c of the scores, c·tanh(scores / c), after all score functions.
            score: returns a score function of this layer, applied after those of the context; a
                module if it has parameters.
            dropout: rate on the attention weights.
            implementation: as in `attention.attend`.
            kernel_init: initializer of the four kernels.
            dtype: of the computation; that of inputs and parameters if None.
            param_dtype: of the parameters.
            rngs: source of the initial parameters.

        Raises:
            ValueError: N not divisible by K, D not by N without `head_width`, a rate outside
                [0, 1), or an unknown norm.
        """
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        num_kv_heads = resolve_kv_heads(num_heads, num_kv_heads)
        head_width = resolve_head_width(width, num_heads, head_width)
        value_width = head_width if value_width is None else value_width
        qkv_bias = use_bias if qkv_bias is None else qkv_bias
        check_score(score)
        source = {"embed": width} if source_width is None else {"source": source_width}
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        make = partial(linear, kernel_init=kernel_init, **kinds)
        self.query = make(
            {"embed": width}, {"heads": num_heads, "head": head_width}, use_bias=qkv_bias
        )
        self.key = make(source, {"kv_heads": num_kv_heads, "head": head_width}, use_bias=qkv_bias)
        self.value = make(
            source, {"kv_heads": num_kv_heads, "head": value_width}, use_bias=qkv_bias
        )
        self.output = make(
            {"heads": num_heads, "head": value_width}, {"embed": width}, use_bias=use_bias
        )
        kinds |= {"epsilon": norm_epsilon, "axis": "head"}
        make_norm = norm_of(qk_norm, "qk_norm") if qk_norm else None
        self.query_norm = make_norm and make_norm(head_width, **kinds)
        self.key_norm = make_norm and make_norm(head_width, **kinds)
        self.score = score
        self.scale, self.softcap = scale, softcap
        self.dropout = dropout
        self.implementation = implementation

    def _queries(self, inputs: Array, context: Context) -> Array:
        query = self.query(inputs)
        query = query if self.query_norm is None else self.query_norm(query)
        return context.shard(query, "sequence", "heads", "head")

    def _keys_and_values(self, source: Array, context: Context) -> tuple[Array, Array]:
        key = self.key(source)
        key = key if self.key_norm is None else self.key_norm(key)
        return tuple(
            context.shard(each, "sequence", "kv_heads", "head")
            for each in (key, self.value(source))
        )

    def _attend(
        self,
        query: Array,
        key: Array | CacheView,
        value: Array | None = None,
        *,
        mask: Mask | Array | None,
        positions: tuple[Array, Array] | None = None,
        context: Context,
        score: tuple[Score, ...] = (),
    ) -> Output:
        """Attend and project the result."""
        score += () if self.score is None else (self.score(),)
        score += () if self.softcap is None else (scores.softcap(self.softcap),)
        dropout = None
        if context.rng is not None and self.dropout:  # each example has its own key
            dropout = Dropout(jax.random.split(context.rng, query.shape[:-3]), self.dropout)
        for name in context.returning:
            one_of("returning", name, (*RETURNING, "hidden_states"))
        returning = tuple(name for name in context.returning if name != "hidden_states")
        attended = context.attend(
            query,
            key,
            value,
            mask=mask,
            score=score,
            scale=self.scale,
            positions=positions,
            dropout=dropout,
            returning=returning,
            implementation=self.implementation,
        )
        attended, results = attended if returning else (attended, None)
        attended = context.shard(attended, "sequence", "heads", "head")
        return Output(self.output(attended), attention=results)


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
        """Make the projections.

        Args:
            width: D.
            rotary: rotates queries and keys `[..., T, N, H]` by their positions `[..., T]`, such as
                `Rotary(base=10_000)`; layers that are scanned together need equal ones.
            window: number of tokens on either side that a query may attend to, itself included.
            options: as in `Attention`.

        Raises:
            ValueError: a window below 1, and as `Attention`.
        """
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        super().__init__(width, **options)
        self.rotary, self.window = rotary, window

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map inputs `[..., T, D]` to `[..., T, D]`.

        With a cache the mask is causal unless the context has one.

        Raises:
            ValueError: a cache of another layer, and as `attention.attend` and `Cache.extend`.
        """
        cache, positions, mask = context.cache, context.positions, context.mask
        num_tokens = inputs.shape[-2]
        pairs = None if positions is None else (positions, positions)
        query = self._queries(inputs, context)
        key, value = self._keys_and_values(inputs, context)
        if cache is not None:
            if not isinstance(cache, Cache):
                raise ValueError(
                    f"self-attention needs a cache made by its new_cache, got {type_of(cache)}"
                )
            positions = cache.next_positions(num_tokens)
            mask = masks.causal() if mask is None else cached_mask(mask)
        elif context.lengths is not None:
            valid = masks.lengths(context.lengths)
            if positions is not None:  # which may be others than those that lengths count
                pairs = positions, jnp.where(context.valid(num_tokens), positions, EMPTY_SLOT)
                valid = masks.full()  # every position but EMPTY_SLOT
            mask = and_mask(valid, mask)
        if self.window is not None:
            window = masks.window(self.window - 1, self.window - 1)
            mask = and_mask(window, mask)
        if self.rotary is not None:
            counted = jnp.arange(num_tokens) if positions is None else positions
            query, key = self.rotary(query, counted), self.rotary(key, counted)
        attend_to = partial(self._attend, query, context=context, score=context.score)
        if cache is None:
            return attend_to(key, value, mask=mask, positions=pairs)
        cache, view = cache.extend(key, value, context.lengths)
        return attend_to(view, mask=mask)._replace(cache=cache)

    def new_cache(self, spec: CacheSpec) -> Cache:
        """Return an empty cache; with a window shorter than its size, a ring of one window."""
        kernel, values = self.key.kernel, self.value.kernel
        size = spec.size if self.window is None else min(spec.size, self.window)
        return empty_cache(
            spec.batch,
            size,
            num_kv_heads=kernel.shape[-2],
            head_width=kernel.shape[-1],
            value_width=values.shape[-1],
            dtype=spec.dtype or self.key.dtype or kernel.dtype,
            ring=spec.ring or size < spec.size,
        )


class EncoderCache(NamedTuple):
    """Keys and values of an encoder output, and their positions `[..., S]` or None."""

    keys: Cache
    positions: Array | None


class CrossAttention(Attention):
    """Attention from the inputs to the encoder output of the context (`source_width` wide)."""

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map inputs `[..., T, D]` to `[..., T, D]`.

        Raises:
            ValueError: no encoder output, one of another width or one beside a cache, a cache of
                another layer, and as `attention.attend`.
        """
        context.check_source()
        query = self._queries(inputs, context)
        if context.cache is not None:
            value = getattr(context.cache, "value", None)
            if not isinstance(value, EncoderCache):
                raise ValueError(
                    "cross-attention needs a cache made by its new_cache, got "
                    f"{type_of(context.cache)}"
                )
            cache, encoder_positions = value
            num_keys = cache.size
        elif context.encoder_output is None:
            raise ValueError(
                "cross-attention needs Context(encoder_output=...): a decoder without an encoder "
                "output has no cross-attention"
            )
        else:
            key, value = self._project_source(context.encoder_output, context)
            cache, encoder_positions, num_keys = None, context.encoder_positions, key.shape[-3]
        positions, mask = None, context.encoder_mask
        is_given = context.positions is not None or encoder_positions is not None
        if is_given or (query.shape[-3] != num_keys and _compares_positions(mask)):
            positions = (
                _counted(query.shape[-3]) if context.positions is None else context.positions,
                _counted(num_keys) if encoder_positions is None else encoder_positions,
            )
        if cache is not None:
            attended = self._attend(query, cache.view(positions), mask=mask, context=context)
            return attended._replace(cache=context.cache)
        return self._attend(query, key, value, mask=mask, positions=positions, context=context)

    def new_cache(self, spec: CacheSpec) -> Constant:
        """Return the keys and values of the encoder output, computed once.

        Raises:
            ValueError: no encoder output.
        """
        if spec.encoder_output is None:
            raise ValueError("the cache of cross-attention needs CacheSpec(encoder_output=...)")
        key, value = self._project_source(spec.encoder_output, Context(constrain=spec.constrain))
        if spec.dtype is not None:
            key, value = key.astype(spec.dtype), value.astype(spec.dtype)
        return Constant(EncoderCache(full_cache(key, value), spec.encoder_positions))

    def _project_source(self, source: Array, context: Context) -> tuple[Array, Array]:
        width, expected = source.shape[-1], self.key.kernel.shape[0]
        if width != expected:
            raise ValueError(
                f"the encoder output has width {width}, and cross-attention has "
                f"source_width={expected}"
            )
        return self._keys_and_values(source, context)


def _compares_positions(mask: Mask | Array | None) -> bool:
    """Return whether `attend` requires positions for T queries and another number of keys."""
    return isinstance(mask, Mask) and any(leaf.compares_positions for leaf in leaves_of(mask))


def _counted(length: int) -> Array:
    """Return the positions of queries or keys, counted from 0."""
    return jnp.arange(length, dtype=jnp.int32)

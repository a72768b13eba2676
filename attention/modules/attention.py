"""Attention with learned projections: to the inputs themselves, and to the output of an encoder."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from attention.modules.config import TransformerConfig
from attention.modules.context import (
    DEFAULT_CONTEXT,
    CacheSpec,
    Context,
    Output,
    and_mask,
    cached_mask,
    check_score,
)
from attention.modules.layers import LECUN_NORMAL, linear, norm_of
from attention.modules.numbers import (
    check_number,
    check_rate,
    resolve_head_width,
    resolve_kv_heads,
)
from attention.primitives import masks, scores
from attention.primitives.cache import EMPTY_SLOT, Cache, Constant, empty_cache, full_cache
from attention.primitives.dropout import Dropout
from attention.primitives.masks import Mask, leaves_of
from attention.primitives.scores import Score


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
        precision: str | None = None,
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
                like `layer_norm`, or its name in `NORMS`.
            norm_epsilon: of `qk_norm`.
            scale: factor of the products of queries and keys, 1/√H if None.
            softcap: bound c of the scores, c·tanh(scores / c), after all score functions.
            score: returns a score function of this layer, applied after those of the context; a
                module if it has parameters.
            dropout: rate on the attention weights.
            precision: of the products of `attention.attend`.
            implementation: as in `attention.attend`.
            kernel_init: initializer of the four kernels.
            dtype: of the computation; that of inputs and parameters if None.
            param_dtype: of the parameters.
            rngs: source of the initial parameters.

        Raises:
            ValueError: N not divisible by K, D not by N without `head_width`, a number out of
                range, or an unknown norm.
        """
        num_kv_heads = resolve_kv_heads(num_heads, num_kv_heads)
        head_width = resolve_head_width(width, num_heads, head_width)
        check_number("value_width", value_width, at_least=1)
        check_number("norm_epsilon", norm_epsilon, at_least=0)
        check_number("scale", scale, above=0)
        check_number("softcap", softcap, above=0)
        check_rate("dropout", dropout)
        check_score(score)
        value_width = head_width if value_width is None else value_width
        qkv_bias = use_bias if qkv_bias is None else qkv_bias
        source = {"embed": width} if source_width is None else {"source": source_width}
        inputs, query = {"embed": width}, {"heads": num_heads, "head": head_width}
        key, value = ({"kv_heads": num_kv_heads, "head": H} for H in (head_width, value_width))
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        make = partial(linear, kernel_init=kernel_init, **kinds)
        self.query = make(inputs, query, use_bias=qkv_bias)
        self.key = make(source, key, use_bias=qkv_bias)
        self.value = make(source, value, use_bias=qkv_bias)
        self.output = make({"heads": num_heads, "head": value_width}, inputs, use_bias=use_bias)
        kinds |= {"epsilon": norm_epsilon, "axis": "head"}
        make_norm = norm_of(qk_norm, "qk_norm") if qk_norm else None
        self.query_norm = make_norm and make_norm(head_width, **kinds)
        self.key_norm = make_norm and make_norm(head_width, **kinds)
        self.score = score
        self.scale, self.softcap = scale, softcap
        self.dropout = dropout
        self.precision, self.implementation = precision, implementation

    @classmethod
    def from_config(cls, config: TransformerConfig, *, rngs: nnx.Rngs, **options: object) -> Self:
        """Make the attention of a block; other arguments are passed on."""
        return cls(
            config.width,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_width=config.head_width,
            value_width=config.value_width,
            use_bias=config.use_bias,
            qkv_bias=config.qkv_bias,
            qk_norm=config.qk_norm,
            norm_epsilon=config.norm_epsilon,
            scale=config.attention_scale,
            softcap=config.softcap,
            dropout=config.attention_dropout,
            implementation=config.implementation,
            **config.linear_options(rngs),
            **options,
        )

    def _attend_options(self, query: Array, context: Context) -> dict[str, Any]:
        """Return the arguments of `attend` that self-attention and cross-attention share."""
        dropout = None
        if context.rng is not None and self.dropout:  # each example has its own key
            dropout = Dropout(jax.random.split(context.rng, query.shape[:-3]), self.dropout)
        return {
            "scale": self.scale,
            "dropout": dropout,
            "returning": [name for name in context.returning if name != "hidden_states"],
            "precision": self.precision,
            "implementation": self.implementation,
        }

    def _scores(self) -> tuple[Score, ...]:
        """Return the score functions of this layer."""
        own = () if self.score is None else (self.score(),)
        return own if self.softcap is None else (*own, scores.softcap(self.softcap))

    def _output(self, attended: Any, context: Context, cache: Any = None) -> Output:  # noqa: ANN401
        """Project what `attend` returned, with or without more results."""
        attended, results = attended if isinstance(attended, tuple) else (attended, None)
        attended = context.shard(attended, "sequence", "heads", "head")
        return Output(self.output(attended), attention=results, cache=cache)


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
            window: number of tokens on either side that a query may attend to, as `before` of
                `masks.window`.
            options: as in `Attention`.

        Raises:
            ValueError: a window below 0, and as `Attention`.
        """
        check_number("window", window, at_least=0)
        super().__init__(width, **options)
        self.rotary, self.window = rotary, window

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map inputs `[..., T, D]` to `[..., T, D]`.

        With a cache the mask is causal unless the context has one.

        Raises:
            ValueError: as `attention.attend` and `Cache.extend`.
        """
        cache, positions, mask = context.cache, context.positions, context.mask
        query, key, value = self.query(inputs), self.key(inputs), self.value(inputs)
        if self.query_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query = context.shard(query, "sequence", "heads", "head")
        key, value = (context.shard(x, "sequence", "kv_heads", "head") for x in (key, value))

        num_tokens = inputs.shape[-2]
        if cache is not None:
            positions = cache.next_positions(num_tokens)
        if self.rotary is not None:
            counted = jnp.arange(num_tokens) if positions is None else positions
            query, key = self.rotary(query, counted), self.rotary(key, counted)

        pairs = None if positions is None else (positions, positions)  # of queries and keys
        if cache is not None:
            mask = masks.causal() if mask is None else cached_mask(mask)
        elif context.lengths is not None and positions is None:
            mask = and_mask(masks.lengths(context.lengths), mask)
        elif context.lengths is not None:  # which count tokens, whatever their positions
            pairs = positions, jnp.where(context.valid(num_tokens), positions, EMPTY_SLOT)
            mask = and_mask(masks.full(), mask)  # every position but EMPTY_SLOT
        if self.window is not None:
            mask = and_mask(masks.window(self.window, self.window), mask)

        if cache is not None:
            cache, key = cache.extend(key, value, context.lengths)  # a view with values, positions
            value = pairs = None
        attended = context.attend(
            query,
            key,
            value,
            mask=mask,
            score=(*context.score, *self._scores()),
            positions=pairs,
            **self._attend_options(query, context),
        )
        return self._output(attended, context, cache)

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


class EncoderCache(NamedTuple):
    """Keys and values of an encoder output, and their positions `[..., S]` or None."""

    keys: Cache
    positions: Array | None


class CrossAttention(Attention):
    """Attention from the inputs to the encoder output of the context (`source_width` wide)."""

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map inputs `[..., T, D]` to `[..., T, D]`.

        Raises:
            ValueError: no encoder output, or one beside a cache, and as `attention.attend`.
        """
        context.check_source()
        query = self.query(inputs)
        query = query if self.query_norm is None else self.query_norm(query)
        query = context.shard(query, "sequence", "heads", "head")

        cache, positions, mask = context.cache, None, context.encoder_mask
        if cache is not None:
            keys, encoder_positions = cache.value
            num_keys = keys.size
        else:
            key, value = self._keys_and_values(context.encoder_output, context)
            encoder_positions, num_keys = context.encoder_positions, key.shape[-3]

        # `attend` needs positions for a mask that compares those of T queries and S != T keys.
        leaves = leaves_of(mask) if isinstance(mask, Mask) else ()
        compares = any(leaf.compares_positions for leaf in leaves)
        is_given = context.positions is not None or encoder_positions is not None
        if is_given or (compares and query.shape[-3] != num_keys):
            positions = (
                _counted(query.shape[-3]) if context.positions is None else context.positions,
                _counted(num_keys) if encoder_positions is None else encoder_positions,
            )
        if cache is not None:
            key, value, positions = keys.view(positions), None, None
        attended = context.attend(
            query,
            key,
            value,
            mask=mask,
            score=self._scores(),
            positions=positions,
            **self._attend_options(query, context),
        )
        return self._output(attended, context, cache)

    def new_cache(self, spec: CacheSpec) -> Constant:
        """Return the keys and values of the encoder output, computed once."""
        key, value = self._keys_and_values(spec.encoder_output, Context(constrain=spec.constrain))
        if spec.dtype is not None:
            key, value = key.astype(spec.dtype), value.astype(spec.dtype)
        return Constant(EncoderCache(full_cache(key, value), spec.encoder_positions))

    def _keys_and_values(self, source: Array | None, context: Context) -> tuple[Array, Array]:
        if source is None:
            raise ValueError("cross-attention needs an encoder_output, in Context or in CacheSpec")
        key, value = self.key(source), self.value(source)
        key = key if self.key_norm is None else self.key_norm(key)
        return tuple(context.shard(x, "sequence", "kv_heads", "head") for x in (key, value))


def _counted(length: int) -> Array:
    """Return the positions of queries or keys, counted from 0."""
    return jnp.arange(length, dtype=jnp.int32)

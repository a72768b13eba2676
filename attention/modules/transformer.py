"""Residual connections, blocks, stacks of layers, encoder and decoder."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.attention import CrossAttention, SelfAttention
from attention.modules.config import FEED_FORWARDS, MIXERS, TransformerConfig
from attention.modules.context import (
    DEFAULT_CONTEXT,
    CacheSpec,
    Context,
    Layer,
    Output,
    add_losses,
    and_mask,
    apply_layer,
    check_rng,
    new_cache,
)
from attention.modules.layers import FeedForward, drop, named, split_rng
from attention.modules.numbers import check_rate
from attention.modules.positions import POSITIONS
from attention.primitives import masks
from attention.primitives.cache import check_lengths
from attention.primitives.choice import one_of
from attention.primitives.scores import Score


@dataclass(eq=False, repr=False)
class Residual(nnx.Module):
    """A sublayer with a residual connection, a norm and dropout on the output of the sublayer.

    "pre": x + sublayer(norm(x)); "post": norm(x + sublayer(x)) (Vaswani et al. 2017). With an
    output norm: x + output_norm(sublayer(norm(x))) (Gemma 2).

    Attributes:
        norm: maps `[..., D]` to `[..., D]`; None for no norm.
        sublayer: as in `context.apply_layer`.
        placement: of the norm, "pre" or "post".
        output_norm: of the output of the sublayer, before the sum.
        dropout: rate on the output of the sublayer.
    """

    norm: nnx.Module | None
    sublayer: Layer
    _: KW_ONLY
    placement: str = "pre"
    output_norm: nnx.Module | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        """Raise a ValueError for an unknown placement, or a rate outside [0, 1)."""
        one_of("placement", self.placement, ("pre", "post"))
        check_rate("dropout", self.dropout)

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., T, D]` to `[..., T, D]`.

        Raises:
            ValueError: a sublayer that does not keep the shape.
        """
        sublayer_rng, dropout_rng = split_rng(context.rng, 2)
        context = replace(context, rng=sublayer_rng)
        is_pre = self.placement == "pre"
        output = apply_layer(self.sublayer, self._normalize(inputs) if is_pre else inputs, context)
        added = output.features
        if self.output_norm is not None:
            added = self.output_norm(added)
        if added.shape != inputs.shape:
            raise ValueError(
                f"a residual connection adds inputs {inputs.shape} and the output of its sublayer, "
                f"got {added.shape}"
            )
        features = inputs + drop(added, self.dropout, dropout_rng).astype(inputs.dtype)
        features = features if is_pre else self._normalize(features)
        return output._replace(features=context.shard(features, "sequence", "embed"))

    def new_cache(self, spec: CacheSpec) -> Any:  # noqa: ANN401 - any pytree
        """Return the cache of the sublayer."""
        return new_cache(self.sublayer, spec)

    def _normalize(self, inputs: Array) -> Array:
        return inputs if self.norm is None else self.norm(inputs)


class Block(nnx.Module):
    """Sublayers one after another, by name.

    The names are those of the attributes, of `Output.attention` and of the cache:

        Block(self_attention=Residual(norm, attention), feed_forward=Residual(norm, feed_forward))
    """

    def __init__(self, **sublayers: Layer) -> None:
        """Make a block of sublayers, each as in `context.apply_layer`."""
        self.names = tuple(sublayers)
        for name, sublayer in sublayers.items():
            setattr(self, name, sublayer)

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., T, D]` to `[..., T, D]`."""
        caches = dict.fromkeys(self.names) if context.cache is None else context.cache
        rngs = split_rng(context.rng, len(self.names))
        features, results = inputs, {}
        for name, rng in zip(self.names, rngs, strict=True):
            part = replace(context, rng=rng, cache=caches[name])
            results[name] = apply_layer(getattr(self, name), features, part)
            features = results[name].features
        return Output(
            features,
            attention={name: each.attention for name, each in results.items() if each.attention},
            cache={name: each.cache for name, each in results.items()},
            losses=add_losses(*(each.losses for each in results.values())),
        )

    def new_cache(self, spec: CacheSpec) -> dict[str, Any]:
        """Return the caches of the sublayers, None for those without state between steps."""
        return {name: new_cache(getattr(self, name), spec) for name in self.names}


Model = TypeVar("Model", bound=nnx.Module)

SHALLOW = 4  # layers; so few, without remat, are unrolled: they compile as fast as a scan


class Layers(nnx.Module):
    """n layers one after another.

    Layers repeat with period p if layers i and i + p have the same structure: static attributes,
    shapes and dtypes. The parameters of layers that repeat are stacked on a leading axis and the
    layers are scanned, so that the time to compile does not grow with n. `blocks` contains the p
    layers of a period, stacked, and then the n % p layers of the last, incomplete one. If no layers
    repeat, `period` is n.

    With a cache the layers are always unrolled, because each writes to a separate buffer. Call
    `unstack_layers` before a decoding loop.
    """

    def __init__(
        self,
        make_layer: Callable[[Any, nnx.Rngs], Layer],
        n: int | Sequence[Any],
        *,
        rngs: nnx.Rngs,
        scan: bool = True,
        remat: bool = True,
    ) -> None:
        """Make the layers.

        Args:
            make_layer: `(index, rngs)` to a layer, as in `context.apply_layer`.
            n: number of layers; or a list with what `make_layer` takes in place of each index, such
                as a config. If the items repeat, they decide which layers repeat, and `make_layer`
                is called for one period of them only.
            rngs: source of the initial parameters.
            scan: whether to stack and scan layers that repeat.
            remat: whether the backward pass recomputes the inside of each layer.

        Raises:
            ValueError: a layer with a random stream or batch statistics.
        """
        items = n if isinstance(n, Sequence) else range(n)
        self.n, self.remat = len(items), remat
        keys = jax.random.split(rngs.params(), self.n) if items else ()

        def make_one(item: object, key: Array) -> Layer:
            return make_layer(item, nnx.Rngs(key))

        def make(at: range) -> Layer:
            """Make the layers with these indices, stacked if there are several."""
            one = partial(make_one, items[at.start])
            if len(at) > 1:
                return jax.vmap(one)(keys[at.start : at.stop : at.step])
            # In a separate trace: flax reads every variable's sharding, which takes the longer
            # the more was traced before.
            return (jax.jit(one) if isinstance(keys, jax.core.Tracer) else one)(keys[at.start])

        self.period = _period(items) if scan else self.n
        blocks = [make(at) for at in self.indices()]
        if scan and self.period == self.n:  # no items repeat
            self.period = _period([_structure(layer) for layer in blocks])
            blocks = [_stack([blocks[index] for index in at]) for at in self.indices()]
        self.blocks = nnx.List(blocks)
        _check_stateless(self)

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., T, D]` to `[..., T, D]`.

        Raises:
            ValueError: a cache of another number of layers; errors of a layer, with its index.
        """
        caches = context.cache
        if caches is not None and len(caches) != self.n:
            raise ValueError(f"{self.n} layers need a tuple of as many caches, got {len(caches)}")
        rngs = [None] * self.n if context.rng is None else jax.random.split(context.rng, self.n)
        features, results, layers = inputs, [], list(self.blocks)
        if len(layers) < self.n and caches is not None:
            layers = self.unstacked()
        elif len(layers) < self.n:
            results, layers = _scan(self, inputs, rngs, context), layers[self.period :]
            features = results[-1].features
        call = jax.checkpoint(apply_layer) if self.remat and caches is None else apply_layer
        for index, layer in enumerate(layers, start=len(results)):
            part = replace(context, rng=rngs[index], cache=caches and caches[index])
            with _naming(index):
                results.append(call(layer, features, part))
            features = results[-1].features
        states = [inputs, *(output.features for output in results)]
        return Output(
            features,
            attention=tuple(output.attention for output in results),
            hidden_states=tuple(states) if "hidden_states" in context.returning else (),
            cache=None if caches is None else tuple(output.cache for output in results),
            losses=add_losses(*(output.losses for output in results)),
        )

    def indices(self) -> list[range]:
        """Return the indices of the layers in each entry of `blocks`."""
        end = self.n - self.n % max(self.period, 1)
        periodic = [range(index, end, self.period) for index in range(min(self.period, end))]
        return [*periodic, *(range(index, index + 1) for index in range(end, self.n))]

    def unstacked(self) -> list[Layer]:
        """Return the n layers, each with its own parameters."""
        if len(self.blocks) == self.n:
            return list(self.blocks)
        stacked, rest = list(self.blocks[: self.period]), list(self.blocks[self.period :])
        return [*_unstack(stacked, self.n // self.period), *rest]

    def new_cache(self, spec: CacheSpec) -> tuple[Any, ...]:
        """Return the cache of each layer, None for one without state between steps."""
        return tuple(new_cache(layer, spec) for layer in self.unstacked())


@partial(jax.jit, inline=True)
def _scan(stack: Layers, inputs: Array, rngs: Array | list[None], context: Context) -> list[Output]:
    """Return the outputs of all layers but those of an incomplete period.

    A call outside of `jit` would compile the scan each time, so that it has a `jit` of its own.
    """
    layers, repeats = list(stack.blocks[: stack.period]), stack.n // stack.period
    has_rng = context.rng is not None
    if has_rng:
        rngs = rngs[: repeats * stack.period]
        rngs = rngs.reshape(repeats, stack.period, *rngs.shape[1:])  # also of raw keys
    # In a scan, CSE cannot undo rematerialisation.
    call = jax.checkpoint(apply_layer, prevent_cse=False) if stack.remat else apply_layer
    keeps = "hidden_states" in context.returning

    def repeat(start: Array, each: tuple[list[Layer], Array | None]) -> tuple[Array, list[Output]]:
        features, outputs = start, []
        for index, layer in enumerate(each[0]):
            part = replace(context, rng=each[1][index] if has_rng else None)
            with _naming(index):
                output = call(layer, features, part)
            features = output.features
            outputs.append(output._replace(features=features if keeps else None, cache=None))
        return features, outputs

    # A scan copies what it keeps for the derivative into arrays of all layers and back.
    unroll = not stack.remat and stack.n <= SHALLOW
    stacked = layers, rngs if has_rng else None
    features, outputs = jax.lax.scan(repeat, inputs, stacked, length=repeats, unroll=unroll)
    results = _unstack(outputs, repeats)
    return [*results[:-1], results[-1]._replace(features=features)]


@contextmanager
def _naming(index: int) -> Iterator[None]:
    """Name a layer in its errors."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise
        raise type(error)(f"layer {index}: {error}") from error


def _check_stateless(layers: Layers) -> None:
    """Raise a ValueError for variables that a call would have to update."""
    state = nnx.state(layers.blocks, (nnx.RngState, nnx.BatchStat))
    for (block, *_), variable in nnx.to_flat_state(state):
        raise ValueError(
            f"layer {layers.indices()[block].start} contains {type(variable).__name__}, a variable "
            "that Layers never updates; for dropout use drop(inputs, rate, context.rng)"
        )


def _period(items: Sequence[Any]) -> int:
    """Return the smallest p for which every item equals the one p before it, n if none does."""
    items = list(items)
    return next((p for p in range(1, len(items)) if items[p:] == items[:-p]), len(items))


def _structure(layer: Layer) -> tuple[Any, list[Any]]:
    """Return what two layers that are stacked have in common."""
    return jax.tree.structure(layer), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(layer)]


def _stack(layers: list[Layer]) -> Layer:
    """Stack the arrays of layers, or return the only layer."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers) if layers[1:] else layers[0]


def _unstack(stacked: list[Any], repeats: int) -> list[Any]:
    """Return the layers, or their outputs, of as many repeats of a period, in order."""
    return [
        jax.tree.map(lambda leaf, at=at: leaf[at], tree)
        for at in range(repeats)
        for tree in stacked
    ]


def unstack_layers(model: Model) -> Model:
    """Return a model with separate parameters for each layer; the given one is not changed.

    In a decoding loop, a slice of stacked parameters would be copied for every token. The time to
    compile then grows with the number of layers, so train with the model as it was made.
    """
    model = nnx.merge(*nnx.split(model))

    def stacked() -> list[Layers]:
        parts = (part for _, part in nnx.iter_modules(model) if isinstance(part, Layers))
        return [part for part in parts if len(part.blocks) < part.n]

    while parts := stacked():
        part = parts[-1]  # the outermost: it stacks the parameters of inner ones
        part.blocks, part.period = nnx.List(part.unstacked()), part.n
    return model


def self_attention(config: TransformerConfig, rngs: nnx.Rngs) -> SelfAttention:
    """Make the self-attention of a config."""
    rotary = POSITIONS[config.positions].rotary
    return SelfAttention.from_config(
        config, rotary=rotary and rotary(config), window=config.window, rngs=rngs
    )


def dense(config: TransformerConfig, rngs: nnx.Rngs) -> FeedForward:
    """Make the feed-forward layer of a config."""
    choices = {"activation": config.activation, "gated": config.gated, "use_bias": config.use_bias}
    return FeedForward(config.width, config.hidden, **choices, **config.linear_options(rngs))


MIXERS["attention"] = self_attention
FEED_FORWARDS["dense"] = dense

MakeLayer = Callable[[int, nnx.Rngs], Layer]


def transformer_block(config: TransformerConfig, rngs: nnx.Rngs, *, cross: bool = False) -> Block:
    """Make a block: self-attention, cross-attention if `cross`, and a feed-forward layer.

    The config may omit the cross-attention, and replace the other two.
    """

    def residual(sublayer: Layer) -> Residual:
        is_both = config.norm_placement == "both"
        return Residual(
            config.make_norm(rngs),
            sublayer,
            placement="pre" if is_both else config.norm_placement,
            output_norm=config.make_norm(rngs) if is_both else None,
            dropout=config.dropout,
        )

    make_mixer = named("mixer", config.mixer, "MIXERS", MIXERS)
    sublayers = {"self_attention": residual(make_mixer(config, rngs))}
    if cross and config.cross_attention:
        sublayers["cross_attention"] = residual(CrossAttention.from_config(config, rngs=rngs))
    make_feed_forward = named("feed_forward", config.feed_forward, "FEED_FORWARDS", FEED_FORWARDS)
    return Block(**sublayers, feed_forward=residual(make_feed_forward(config, rngs)))


@dataclass(eq=False, repr=False)
class Encoder(nnx.Module):
    """A stack of layers, a norm after it, and a score function that its layers share.

    Attributes:
        layers: such as `Layers`.
        norm: of the output; pre-norm blocks need one.
        score: returns a score function of all self-attention, for instance `RelativeScores`.
        cross: whether layers attend to an encoder output.
    """

    layers: Layer
    _: KW_ONLY
    norm: Callable[[Array], Array] | None = None
    score: Callable[[], Score] | None = None
    cross: bool = False

    deterministic = True  # `train` of nnx sets it to False
    causal = False  # a field of `Decoder`
    number_of_layers = "encoder_layers"

    @classmethod
    def from_config(
        cls,
        config: TransformerConfig,
        *,
        rngs: nnx.Rngs,
        make_layer: MakeLayer | None = None,
        **flags: bool,
    ) -> Self:
        """Make a stack of `encoder_layers` or `decoder_layers` blocks.

        `make_layer(index, rngs)` makes each in place of `transformer_block`; `flags` are `cross`,
        and `causal` of a decoder.

        Raises:
            ValueError: `cross` without cross-attention in any layer.
        """
        cross, n = flags.get("cross", False), getattr(config, cls.number_of_layers)
        items = n if make_layer else [config.layer(index) for index in range(n)]
        if make_layer is None:
            make_layer = partial(transformer_block, cross=cross)
            if cross and n and not any(each.cross_attention for each in items):
                raise ValueError("cross_attention=False in every layer needs cross=False")
        layers = Layers(make_layer, items, rngs=rngs, scan=config.scan, remat=config.remat)
        # The features of post-norm blocks are normalised already.
        norm = None if config.norm_placement == "post" else config.make_norm(rngs)
        score = POSITIONS[config.positions].score
        score = score and score(config, flags.get("causal", cls.causal), rngs)
        return cls(layers, norm=norm, score=score, **flags)

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., T, D]` to `[..., T, D]`.

        Raises:
            ValueError: an encoder output without `cross`, no `rng` in training mode, and as
                `check_lengths` and `Layers`.
        """
        check_rng(self, context.rng)
        if not self.cross and not (context.encoder_output is context.encoder_mask is None):
            kind = type(self).__name__
            raise ValueError(f"{kind} with cross=False takes no encoder output and no mask of it")
        if context.lengths is not None:
            check_lengths(context.lengths, inputs.shape[-2])
        inputs = context.shard(inputs, "sequence", "embed")
        if self.score is not None:
            context = replace(context, score=(*context.score, self.score()))
        output = apply_layer(self.layers, inputs, context)
        return output if self.norm is None else output._replace(features=self.norm(output.features))


class DecoderCache(NamedTuple):
    """The cache of each layer, and the number of tokens that each row has read, int32 `[...]`."""

    layers: Any
    lengths: Array


@dataclass(eq=False, repr=False)
class Decoder(Encoder):
    """A stack whose self-attention is causal, whatever other mask is given.

    With `causal=False` only the given mask decides, and a cache lets a token attend to those read
    before it and with it.
    """

    _: KW_ONLY
    causal: bool = True

    number_of_layers = "decoder_layers"

    @classmethod
    def from_config(
        cls, config: TransformerConfig, *, cross: bool = True, **options: object
    ) -> Self:
        """Make a decoder, with cross-attention if `cross`; see `Encoder.from_config`."""
        return super().from_config(config, cross=cross, **options)

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., T, D]` to `[..., T, D]`; `context.cache` is a `DecoderCache`.

        Raises:
            ValueError: positions beside a cache, a cache of another model, and as `Encoder`.
        """
        cache, mask = context.cache, context.mask
        if self.causal:
            mask = and_mask(masks.causal(), mask)
        elif cache is not None and mask is None:
            mask = masks.full()  # self-attention with a cache and without a mask would be causal
        context = replace(context, mask=mask)
        if cache is None:
            return super().__call__(inputs, context=context)
        positions = next_positions(inputs.shape[:-1], context.positions, cache)
        context = replace(context, positions=positions, cache=cache.layers)
        output = super().__call__(inputs, context=context)
        more = inputs.shape[-2] if context.lengths is None else context.lengths
        lengths = cache.lengths + jnp.asarray(more, jnp.int32)
        return output._replace(cache=DecoderCache(output.cache, lengths))

    def new_cache(self, spec: CacheSpec) -> DecoderCache:
        """Return a cache that contains no tokens."""
        return DecoderCache(self.layers.new_cache(spec), jnp.zeros(spec.batch, jnp.int32))


def next_positions(
    shape: tuple[int, ...], positions: Array | None, cache: DecoderCache | None
) -> Array | None:
    """Return the positions of tokens `[..., T]` that follow those in a cache; else, as given.

    Raises a ValueError for positions beside a cache, and for a cache of another model or batch.
    """
    if cache is None:
        return positions
    if not hasattr(cache, "lengths"):
        kind = type(cache).__name__
        raise ValueError(f"a decoder needs a cache made by new_cache of this model, got a {kind}")
    if positions is not None:
        raise ValueError("a cache counts the positions of its tokens: give no positions")
    batch, made_for = shape[:-1], cache.lengths.shape
    if batch != made_for:
        raise ValueError(f"this cache is for a batch of shape {made_for}, got {batch}")
    return jnp.add.outer(cache.lengths, jnp.arange(shape[-1], dtype=jnp.int32))

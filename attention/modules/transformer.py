"""Blocks of attention and feed-forward layers, stacked into encoder, decoder and both."""

from collections.abc import Callable, Collection, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.attention import Attention
from attention.modules.config import TransformerConfig
from attention.modules.dropout import drop, split_key
from attention.modules.embedding import Embedding
from attention.modules.feed_forward import FeedForward
from attention.modules.linear import Linear
from attention.modules.norm import NORMS, Norm
from attention.modules.positions import SCHEMES
from attention.modules.table import table
from attention.primitives.cache import Cache, empty_cache
from attention.primitives.masks import Mask, causal
from attention.primitives.scores import Score

Extras = dict[str, dict[str, Array]]
Caches = tuple[Cache, ...]  # one for each layer

SHALLOW = 4  # layers, which are compiled one by one as soon as a loop of them


class Block(nnx.Module):
    """Self-attention, in a decoder cross-attention, and a feed-forward layer, each a residual."""

    def __init__(self, config: TransformerConfig, *, cross: bool, rngs: nnx.Rngs) -> None:
        """Makes one block; `cross` adds attention to a memory."""
        norm = NORMS[config.norm_kind]

        def attention(turn: Callable[[Array, Array], Array] | None = None) -> Attention:
            return Attention(
                config.width,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_width=config.head_width,
                use_bias=config.use_bias,
                qk_norm=config.qk_norm,
                turn=turn,
                implementation=config.implementation,
                dropout=config.attention_dropout,
                rngs=rngs,
            )

        self.self_attention = attention(SCHEMES[config.positions].turn(config))
        self.self_norm = norm(config.width, rngs=rngs)
        if cross:
            self.cross_attention = attention()
            self.cross_norm = norm(config.width, rngs=rngs)
        self.feed_forward = FeedForward(
            config.width,
            config.hidden,
            activation=config.activation,
            use_bias=config.use_bias,
            rngs=rngs,
        )
        self.feed_forward_norm = norm(config.width, rngs=rngs)
        self.dropout = config.dropout
        self.pre_norm = config.norm == "pre"

    def __call__(
        self,
        inputs: Array,
        memory: Array | Cache | None = None,
        *,
        mask: Mask | None,
        memory_mask: Mask | None = None,
        score: Collection[Score] = (),
        key: Array | None = None,
        cache: Cache | None = None,
        lengths: Array | None = None,
        returning: Collection[str] = (),
    ) -> tuple[Array, Extras] | tuple[Array, Extras, Cache]:
        """Maps inputs `[..., T, D]` and a memory `[..., S, D]` to `[..., T, D]`.

        `mask`, `score` and `cache` are those of self-attention; the rest is as in `Decoder`.
        """
        keys = split_key(key, 5)
        extras: Extras = {}
        kept: list[Cache] = []

        def attend_to_itself(inputs: Array) -> Array:
            nonlocal kept
            output, extras["self"], *kept = self.self_attention(
                inputs,
                mask=mask,
                score=score,
                key=keys[0],
                cache=cache,
                lengths=lengths,
                returning=returning,
            )
            return output

        def attend_to_memory(inputs: Array) -> Array:
            output, extras["cross"] = self.cross_attention(
                inputs, memory, mask=memory_mask, key=keys[1], returning=returning
            )
            return output

        outputs = self._residual(self.self_norm, attend_to_itself, inputs, keys[2])
        if memory is not None:
            outputs = self._residual(self.cross_norm, attend_to_memory, outputs, keys[3])
        outputs = self._residual(self.feed_forward_norm, self.feed_forward, outputs, keys[4])
        return outputs, extras, *kept

    def _residual(
        self,
        norm: Norm,
        sublayer: Callable[[Array], Array],
        inputs: Array,
        key: Array | None,
    ) -> Array:
        if self.pre_norm:
            return inputs + drop(sublayer(norm(inputs)), self.dropout, key)
        return norm(inputs + drop(sublayer(inputs), self.dropout, key))


class Stack(nnx.Module):
    """Equal blocks one after another.

    Their parameters are stacked on a leading axis of layers and scanned over, so that the time to
    compile does not grow with the depth; up to `SHALLOW` without remat are run one by one instead.
    With caches there is no scan, for a step is short: each layer is compiled, and writes to a
    buffer of its own. `unrolled` takes the stack apart for who makes many such steps.
    """

    def __init__(
        self,
        config: TransformerConfig,
        num_layers: int,
        *,
        cross: bool,
        causal: bool,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the blocks and what they share."""
        keys = jax.random.split(rngs.params(), num_layers)
        self.layers = jax.vmap(lambda key: Block(config, cross=cross, rngs=nnx.Rngs(key)))(keys)
        self.num_layers = num_layers
        self.remat = config.remat
        # The residual stream of pre-norm blocks is never normalised on its way.
        norm = NORMS[config.norm_kind]
        self.norm = norm(config.width, rngs=rngs) if config.norm == "pre" else None
        # What positions do to scores, all layers do alike (Raffel et al. 2020, section 2.1).
        scheme = SCHEMES[config.positions]
        self.positions = table(scheme.score_table(config), config.width, rngs=rngs)
        self.kind = config.positions
        self.num_heads = config.num_heads
        self.causal = causal

    def _run(
        self,
        inputs: Array,
        memory: Array | Caches | None,
        *,
        mask: Mask | None,
        memory_mask: Mask | None,
        key: Array | None,
        cache: Caches | None = None,
        lengths: Array | None = None,
        returning: Collection[str],
    ) -> tuple[Array, Extras] | tuple[Array, Extras, Caches]:
        learned = None if self.positions is None else self.positions[...]
        score = SCHEMES[self.kind].score(self.num_heads, learned, self.causal)

        def step(
            inputs: Array, layer: tuple[Block, Array | None, Cache | None, Cache | None]
        ) -> tuple[Array, tuple[Extras, *tuple[Cache, ...]]]:
            block, key, cache, remembered = layer
            outputs, *found = block(
                inputs,
                memory if remembered is None else remembered,
                mask=mask,
                memory_mask=memory_mask,
                score=score,
                key=key,
                cache=cache,
                lengths=lengths,
                returning=returning,
            )
            return outputs, tuple(found)

        keys = None if key is None else jax.random.split(key, self.num_layers)
        memories = memory if isinstance(memory, tuple) else ()
        if self.remat and cache is None:  # in a loop nothing can be merged with its other self
            step = jax.checkpoint(step, prevent_cse=not self.is_stacked)
        if cache is None and self.is_stacked:
            # What a loop keeps for the derivative, it copies into arrays of all layers and back.
            unroll = not self.remat and self.num_layers <= SHALLOW
            stacked = jax.tree.map(lambda *each: jnp.stack(each), *memories) if memories else None
            layers = self.layers, keys, None, stacked
            outputs, (extras,) = jax.lax.scan(step, inputs, layers, unroll=unroll)
            kept = ()
        else:
            outputs, found = inputs, []
            for number, block in enumerate(self.blocks()):
                key = None if keys is None else keys[number]
                own = None if cache is None else cache[number]
                remembered = memories[number] if memories else None
                outputs, each = step(outputs, (block, key, own, remembered))
                found.append(each)
            extras, *kept = zip(*found, strict=True)
            extras = jax.tree.map(lambda *layers: jnp.stack(layers), *extras)
        outputs = outputs if self.norm is None else self.norm(outputs)
        return outputs, extras, *kept

    @property
    def is_stacked(self) -> bool:
        """Whether the parameters of all layers stand in one array."""
        return isinstance(self.layers, Block)

    def blocks(self) -> list[Block]:
        """The blocks, each with parameters of its own."""
        if not self.is_stacked:
            return list(self.layers)
        return [
            jax.tree.map(lambda leaf, at=at: leaf[at], self.layers) for at in range(self.num_layers)
        ]


class Encoder(Stack):
    """A stack of self-attention blocks, each position seeing both sides (Vaswani et al. 2017)."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        """Makes `config.encoder_layers` blocks."""
        super().__init__(config, config.encoder_layers, cross=False, causal=False, rngs=rngs)

    def __call__(
        self,
        inputs: Array,
        *,
        mask: Mask | None,
        key: Array | None = None,
        returning: Collection[str] = (),
    ) -> tuple[Array, Extras]:
        """Maps `[..., S, D]` to `[..., S, D]`.

        Args:
            inputs: `[..., S, D]`.
            mask: who may attend to whom; None is everyone, padding too.
            key: random key for dropout, none without.
            returning: what attention shall return besides, as in `attention.attend`.

        Returns:
            The outputs, and what was asked for as `{"self": {name: [layer, ...]}}`.
        """
        return self._run(inputs, None, mask=mask, memory_mask=None, key=key, returning=returning)


class Decoder(Stack):
    """A stack of causal self-attention blocks, with attention to a memory if `cross`."""

    def __init__(self, config: TransformerConfig, *, cross: bool = True, rngs: nnx.Rngs) -> None:
        """Makes `config.decoder_layers` blocks; without `cross` they are a language model's."""
        super().__init__(config, config.decoder_layers, cross=cross, causal=True, rngs=rngs)
        self.cross = cross

    def __call__(
        self,
        inputs: Array,
        memory: Array | Caches | None = None,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        key: Array | None = None,
        cache: Caches | None = None,
        lengths: Array | None = None,
        returning: Collection[str] = (),
    ) -> tuple[Array, Extras] | tuple[Array, Extras, Caches]:
        """Maps `[..., T, D]`, and a memory `[..., S, D]`, to `[..., T, D]`.

        Args:
            inputs: `[..., T, D]`.
            memory: `[..., S, D]`, what cross-attention attends to; or what `remember` made of it.
            mask: who may attend to whom among the inputs; causal by default.
            memory_mask: who may attend to whom in the memory; None is everyone, padding too.
            key: random key for dropout, none without.
            cache: of `new_cache`, what each layer has read before the inputs.
            lengths: with a cache, `[...]`: how many of the T inputs of each row are no padding.
            returning: what attention shall return besides, as in `attention.attend`.

        Returns:
            The outputs, and what was asked for as `{"self"|"cross": {name: [layer, ...]}}`; with a
            cache, the new cache too.

        Raises:
            ValueError: no memory to attend to, a memory that nothing attends to, a cache that is
                full, or another number of caches, or of memories remembered, than of layers.
        """
        if self.cross and memory is None:
            raise ValueError("a decoder with cross=True attends to a memory, and none is given")
        if not self.cross and (memory is not None or memory_mask is not None):
            raise ValueError("a decoder with cross=False takes neither memory nor memory_mask")
        if cache is not None:
            self._check_caches(cache)
        if isinstance(memory, tuple | list | Cache):
            self._check_caches(memory)
        mask = causal() if mask is None else mask
        return self._run(
            inputs,
            memory,
            mask=mask,
            memory_mask=memory_mask,
            key=key,
            cache=cache,
            lengths=lengths,
            returning=returning,
        )

    def new_cache(self, batch: Sequence[int], size: int, *, ring: bool = False) -> Caches:
        """A cache for the self-attention of each layer, that has read nothing.

        Args:
            batch: the leading axes of the inputs to come.
            size: S, the most tokens of a row; in a ring, of its window.
            ring: whether a full row goes on in its first slot, forgetting what stood there.

        Returns:
            For each layer, keys `[..., S, K, H]` and values `[..., S, K, Hv]`.

        Raises:
            ValueError: a decoder without layers.
        """
        self._check_layers()
        any_layer = self.layers if self.is_stacked else self.layers[0]
        key = any_layer.self_attention.key.kernel  # [..., D, K, H]
        value = any_layer.self_attention.value.kernel
        new = partial(
            empty_cache,
            batch,
            size,
            num_kv_heads=key.shape[-2],
            head_width=key.shape[-1],
            value_width=value.shape[-1],
            dtype=key.dtype,
            ring=ring,
        )
        return tuple(new() for _ in range(self.num_layers))

    def num_read(self, cache: Caches | None) -> Array | None:
        """How many tokens each row has read, `[...]`; None without caches.

        Raises:
            ValueError: another number of caches than of layers.
        """
        if cache is None:
            return None
        self._check_caches(cache)
        return cache[0].lengths

    def _check_caches(self, caches: Caches) -> None:
        if not isinstance(caches, tuple) or len(caches) != self.num_layers:
            number = len(caches) if isinstance(caches, tuple | list) else "a single one"
            raise ValueError(
                f"a decoder of {self.num_layers} layers needs a tuple of as many caches, "
                f"got {number}"
            )

    def remember(self, memory: Array) -> Caches:
        """Keys and values of a memory `[..., S, D]` for the cross-attention of each layer.

        Raises:
            ValueError: a decoder without layers.
        """
        self._check_layers()
        return tuple(block.cross_attention.remember(memory) for block in self.blocks())

    def _check_layers(self) -> None:
        if not self.num_layers:
            raise ValueError("a decoder without layers has nothing to remember")


class EncoderDecoder(nnx.Module):
    """Reads a source with an encoder and scores each next target token with a decoder."""

    def __init__(
        self,
        config: TransformerConfig,
        *,
        source_vocab_size: int,
        target_vocab_size: int,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes embeddings, encoder, decoder and, if it is not tied, the output layer.

        Raises:
            ValueError: tie="all" of two vocabularies of different size.
        """
        if config.tie == "all" and source_vocab_size != target_vocab_size:
            raise ValueError(
                f"tie='all' needs one vocabulary, got {source_vocab_size} source and "
                f"{target_vocab_size} target words: use tie='output'"
            )
        shared = config.tie == "all"
        self.target_embedding = Embedding(target_vocab_size, config, rngs=rngs)
        self.source_embedding = None if shared else Embedding(source_vocab_size, config, rngs=rngs)
        self.encoder = Encoder(config, rngs=rngs)
        self.decoder = Decoder(config, rngs=rngs)
        self.output = (
            Linear(config.width, target_vocab_size, use_bias=False, rngs=rngs)
            if config.tie == "none"
            else None
        )

    def encode(
        self,
        source: Array,
        *,
        mask: Mask | None,
        positions: Array | None = None,
        key: Array | None = None,
    ) -> Array:
        """Maps source tokens `[..., S]` to the memory `[..., S, D]`.

        Args:
            source: token ids.
            mask: who may attend to whom; None is everyone, padding too.
            positions: where the embeddings stand, `[..., S]`; counted by default.
            key: random key for dropout, none without.
        """
        embed_key, layer_key = split_key(key, 2)
        embedding = (
            self.target_embedding if self.source_embedding is None else self.source_embedding
        )
        inputs = embedding(source, positions=positions, key=embed_key)
        memory, _ = self.encoder(inputs, mask=mask, key=layer_key)
        return memory

    def decode(
        self,
        target: Array,
        memory: Array | Caches,
        *,
        memory_mask: Mask | None,
        mask: Mask | None = None,
        positions: Array | None = None,
        key: Array | None = None,
        cache: Caches | None = None,
        lengths: Array | None = None,
        returning: Collection[str] = (),
    ) -> tuple[Array, Extras] | tuple[Array, Extras, Caches]:
        """Maps target tokens `[..., T]` and the memory `[..., S, D]` to features `[..., T, D]`.

        Args:
            target: token ids, from the start symbol on.
            memory: what `encode` returned, or what `remember` made of it.
            memory_mask: who may attend to whom in the memory; None is everyone, padding too.
            mask: who may attend to whom in the target; causal by default.
            positions: where the embeddings stand, `[..., T]`; counted by default.
            key: random key for dropout, none without.
            cache: of `new_cache`, the target read so far; `target` is what comes next.
            lengths: with a cache, `[...]`: how many of the T tokens of each row are no padding.
            returning: what attention shall return besides, as in `attention.attend`.

        Returns:
            Features for `logits`, and what was asked for, as `Decoder` returns it; with a cache,
            the new cache too.
        """
        embed_key, layer_key = split_key(key, 2)
        start = self.decoder.num_read(cache)
        return self.decoder(
            self.target_embedding(target, positions=positions, start=start, key=embed_key),
            memory,
            mask=mask,
            memory_mask=memory_mask,
            key=layer_key,
            cache=cache,
            lengths=lengths,
            returning=returning,
        )

    def new_cache(self, batch: Sequence[int], size: int, *, ring: bool = False) -> Caches:
        """Caches for `decode` that have read nothing, as `Decoder.new_cache` makes them.

        Raises:
            ValueError: a size above `max_length`, or a ring for learned positions.
        """
        self.target_embedding.check_cache(size, ring=ring)
        return self.decoder.new_cache(batch, size, ring=ring)

    def remember(self, memory: Array) -> Caches:
        """What every layer of `decode` would compute anew of the memory: keys and values."""
        return self.decoder.remember(memory)

    def logits(self, features: Array) -> Array:
        """Maps features `[..., D]` to scores of the next token `[..., V]`."""
        if self.output is None:
            return self.target_embedding.unembed(features)
        return self.output(features)

    def __call__(
        self,
        source: Array,
        target: Array,
        *,
        source_mask: Mask | None,
        memory_mask: Mask | None,
        target_mask: Mask | None = None,
        key: Array | None = None,
    ) -> Array:
        """Scores each next target token: source `[..., S]`, target `[..., T]` → `[..., T, V]`."""
        encode_key, decode_key = split_key(key, 2)
        memory = self.encode(source, mask=source_mask, key=encode_key)
        features, _ = self.decode(
            target, memory, memory_mask=memory_mask, mask=target_mask, key=decode_key
        )
        return self.logits(features)

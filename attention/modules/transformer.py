"""Blocks of attention and feed-forward layers, stacked into encoder, decoder and both."""

from collections.abc import Callable, Collection

import jax
from flax import nnx
from jax import Array

from attention.modules.attention import Attention
from attention.modules.config import TransformerConfig
from attention.modules.dropout import drop, split_key
from attention.modules.embedding import Embedding
from attention.modules.feed_forward import FeedForward
from attention.primitives.masks import Mask, causal

Extras = dict[str, dict[str, Array]]


class Block(nnx.Module):
    """Self-attention, in a decoder cross-attention, and a feed-forward layer, each a residual."""

    def __init__(self, config: TransformerConfig, *, cross: bool, rngs: nnx.Rngs) -> None:
        """Makes one block; `cross` adds attention to a memory."""

        def attention(rotate: bool = False) -> Attention:
            return Attention(
                config.width,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_width=config.head_width,
                use_bias=config.use_bias,
                rotate=rotate,
                implementation=config.implementation,
                dropout=config.attention_dropout,
                rngs=rngs,
            )

        self.self_attention = attention(rotate=config.positions == "rotary")
        self.self_norm = nnx.LayerNorm(config.width, rngs=rngs)
        if cross:
            self.cross_attention = attention()
            self.cross_norm = nnx.LayerNorm(config.width, rngs=rngs)
        self.feed_forward = FeedForward(
            config.width,
            config.hidden,
            activation=config.activation,
            use_bias=config.use_bias,
            rngs=rngs,
        )
        self.feed_forward_norm = nnx.LayerNorm(config.width, rngs=rngs)
        self.dropout = config.dropout
        self.pre_norm = config.norm == "pre"

    def __call__(
        self,
        inputs: Array,
        memory: Array | None = None,
        *,
        mask: Mask | None,
        memory_mask: Mask | None = None,
        key: Array | None = None,
        returning: Collection[str] = (),
    ) -> tuple[Array, Extras]:
        """Maps inputs `[..., T, D]` and a memory `[..., S, D]` to `[..., T, D]`."""
        keys = split_key(key, 5)
        extras: Extras = {}

        def attend_to_itself(inputs: Array) -> Array:
            output, extras["self"] = self.self_attention(
                inputs, mask=mask, key=keys[0], returning=returning
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
        return outputs, extras

    def _residual(
        self,
        norm: nnx.LayerNorm,
        sublayer: Callable[[Array], Array],
        inputs: Array,
        key: Array | None,
    ) -> Array:
        if self.pre_norm:
            return inputs + drop(sublayer(norm(inputs)), self.dropout, key)
        return norm(inputs + drop(sublayer(inputs), self.dropout, key))


class _Stack(nnx.Module):
    """Equal blocks one after another.

    Their parameters are stacked on a leading axis of layers and scanned over, so that the time to
    compile does not grow with the depth.
    """

    def __init__(
        self, config: TransformerConfig, num_layers: int, *, cross: bool, rngs: nnx.Rngs
    ) -> None:
        keys = jax.random.split(rngs.params(), num_layers)
        self.layers = jax.vmap(lambda key: Block(config, cross=cross, rngs=nnx.Rngs(key)))(keys)
        self.num_layers = num_layers
        self.remat = config.remat
        # The residual stream of pre-norm blocks is never normalised on its way.
        self.norm = nnx.LayerNorm(config.width, rngs=rngs) if config.norm == "pre" else None

    def _run(
        self,
        inputs: Array,
        memory: Array | None,
        *,
        mask: Mask | None,
        memory_mask: Mask | None,
        key: Array | None,
        returning: Collection[str],
    ) -> tuple[Array, Extras]:
        def step(inputs: Array, layer: tuple[Block, Array | None]) -> tuple[Array, Extras]:
            block, key = layer
            return block(
                inputs, memory, mask=mask, memory_mask=memory_mask, key=key, returning=returning
            )

        keys = None if key is None else jax.random.split(key, self.num_layers)
        step = jax.checkpoint(step, prevent_cse=False) if self.remat else step
        outputs, extras = jax.lax.scan(step, inputs, (self.layers, keys))
        return (outputs if self.norm is None else self.norm(outputs)), extras


class Encoder(_Stack):
    """A stack of self-attention blocks, each position seeing both sides (Vaswani et al. 2017)."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        """Makes `config.encoder_layers` blocks."""
        super().__init__(config, config.encoder_layers, cross=False, rngs=rngs)

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


class Decoder(_Stack):
    """A stack of causal self-attention blocks, with attention to a memory if `cross`."""

    def __init__(self, config: TransformerConfig, *, cross: bool = True, rngs: nnx.Rngs) -> None:
        """Makes `config.decoder_layers` blocks; without `cross` they are a language model's."""
        super().__init__(config, config.decoder_layers, cross=cross, rngs=rngs)
        self.cross = cross

    def __call__(
        self,
        inputs: Array,
        memory: Array | None = None,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        key: Array | None = None,
        returning: Collection[str] = (),
    ) -> tuple[Array, Extras]:
        """Maps `[..., T, D]`, and a memory `[..., S, D]`, to `[..., T, D]`.

        Args:
            inputs: `[..., T, D]`.
            memory: `[..., S, D]`, what cross-attention attends to.
            mask: who may attend to whom among the inputs; causal by default.
            memory_mask: who may attend to whom in the memory; None is everyone, padding too.
            key: random key for dropout, none without.
            returning: what attention shall return besides, as in `attention.attend`.

        Returns:
            The outputs, and what was asked for as `{"self"|"cross": {name: [layer, ...]}}`.

        Raises:
            ValueError: no memory to attend to, or a memory that nothing attends to.
        """
        if self.cross and memory is None:
            raise ValueError("a decoder with cross=True attends to a memory, and none is given")
        if not self.cross and (memory is not None or memory_mask is not None):
            raise ValueError("a decoder with cross=False takes neither memory nor memory_mask")
        mask = causal() if mask is None else mask
        return self._run(
            inputs, memory, mask=mask, memory_mask=memory_mask, key=key, returning=returning
        )


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
            nnx.Linear(config.width, target_vocab_size, use_bias=False, rngs=rngs)
            if config.tie == "none"
            else None
        )

    def encode(self, source: Array, *, mask: Mask | None, key: Array | None = None) -> Array:
        """Maps source tokens `[..., S]` to the memory `[..., S, D]`.

        Args:
            source: token ids.
            mask: who may attend to whom; None is everyone, padding too.
            key: random key for dropout, none without.
        """
        embed_key, layer_key = split_key(key, 2)
        embedding = (
            self.target_embedding if self.source_embedding is None else self.source_embedding
        )
        memory, _ = self.encoder(embedding(source, key=embed_key), mask=mask, key=layer_key)
        return memory

    def decode(
        self,
        target: Array,
        memory: Array,
        *,
        memory_mask: Mask | None,
        mask: Mask | None = None,
        key: Array | None = None,
        returning: Collection[str] = (),
    ) -> tuple[Array, Extras]:
        """Maps target tokens `[..., T]` and the memory `[..., S, D]` to features `[..., T, D]`.

        Args:
            target: token ids, from the start symbol on.
            memory: what `encode` returned.
            memory_mask: who may attend to whom in the memory; None is everyone, padding too.
            mask: who may attend to whom in the target; causal by default.
            key: random key for dropout, none without.
            returning: what attention shall return besides, as in `attention.attend`.

        Returns:
            Features for `logits`, and what was asked for, as `Decoder` returns it.
        """
        embed_key, layer_key = split_key(key, 2)
        return self.decoder(
            self.target_embedding(target, key=embed_key),
            memory,
            mask=mask,
            memory_mask=memory_mask,
            key=layer_key,
            returning=returning,
        )

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

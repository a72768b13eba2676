"""Sizes and choices of models.

A name must be one of a tuple below, or one that a plugin added to the registry of the library; a
test compares each tuple with the registry.
The library checks all other values when the model is created, before a run writes files.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from experiments.config.build import as_tree, option
from experiments.errors import check_at_least, check_positive, check_share, one_of

ACTIVATIONS = ("relu", "gelu", "gelu_exact", "silu", "tanh")
NORMS = ("layer", "rms")
NORM_PLACEMENTS = ("pre", "post", "both")
POSITIONS = ("none", "sinusoidal", "learned", "rotary", "alibi", "relative")
ABSOLUTE = ("sinusoidal", "learned")  # added to the embeddings, so they end at max_length
INITIALIZERS = ("lecun_normal", "xavier_uniform", "he_normal", "normal_0.02")
TIES = ("none", "output", "all", "embeddings")
IMPLEMENTATIONS = (
    *("tiled", "reference", "tokamax", "tokamax:mosaic", "tokamax:triton", "tokamax:cudnn"),
    *("tokamax:xla_chunked", "tokamax:xla"),
)
POOLINGS = ("mean", "class_token")
CELLS = ("gru", "lstm")
ATTENTIONS = ("none", "additive", "multiplicative")


@dataclass(frozen=True, kw_only=True)
class RotaryPart:
    """Rotary positions."""

    base: float = option(10_000.0, "base of the wavelengths")
    scaling: str = option("none", "for longer texts: none, linear, ntk, llama3 or yarn")
    factor: float = option(1.0, "ratio of the longest text to original_length")
    original_length: int = option(48, "longest text of the training")


@dataclass(frozen=True, kw_only=True)
class ExpertsPart:
    """Mixture of experts in the feed-forward layer of some blocks."""

    number: int = option(4, "experts of a layer")
    every: int = option(2, "one of so many layers has experts")
    capacity_factor: float = option(1.25, "tokens that an expert takes in training ÷ its share")
    balance: float = option(0.01, "factor of the balance loss")

    def __post_init__(self) -> None:
        """Check the fields."""
        for name, least in (("number", 2), ("every", 1), ("balance", 0)):
            check_at_least(name, getattr(self, name), least)
        check_positive("capacity_factor", self.capacity_factor)


@dataclass(frozen=True, kw_only=True)
class _Transformer:
    """Fields of `attention.modules.TransformerConfig` that every Transformer reads."""

    width: int = option(96, "D, width of the model")
    num_heads: int = option(4, "N, query heads")
    num_kv_heads: int | None = option(None, "K, key/value heads; as many as query heads if None")
    head_width: int | None = option(None, "H; width / num_heads if None")
    hidden: int = option(256, "F, width of the feed-forward layers")
    activation: str = option("relu", f"of the feed-forward layers: {', '.join(ACTIVATIONS)}")
    gated: bool = option(False, "whether feed-forward layers are gated")
    norm: str = option("layer", f"one of {', '.join(NORMS)}")
    norm_placement: str = option("pre", f"one of {', '.join(NORM_PLACEMENTS)}")
    norm_epsilon: float = option(1e-6, "added to the variance")
    qk_norm: str | None = option(None, "norm of queries and keys")
    positions: str = option("rotary", f"one of {', '.join(POSITIONS)}")
    rotary: RotaryPart = field(default_factory=RotaryPart)
    max_length: int = option(48, "longest sequence, in tokens")
    use_bias: bool = option(True, "whether the linear layers of blocks have biases")
    window: int | None = option(None, "tokens on either side that attention may attend to")
    softcap: float | None = option(None, "bound of attention scores")
    kernel_init: str = option("lecun_normal", f"one of {', '.join(INITIALIZERS)}")
    dropout: float = option(0.0, "rate on embeddings and on the output of every sublayer")
    attention_dropout: float = option(0.0, "rate on attention weights")
    implementation: str | None = option(None, "of attention; chosen if None")
    remat: bool = option(True, "whether the backward pass recomputes the inside of each block")
    per_layer: tuple[Mapping[str, Any], ...] = option((), "overrides that the layers cycle through")

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("width", "num_heads", "hidden", "max_length", "head_width"):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), 1)
        for name in ("encoder_layers", "decoder_layers", "patch_size"):
            check_at_least(name, getattr(self, name, 1), 1)
        check_at_least("window", self.window or 0, 0)
        for name in ("dropout", "attention_dropout"):
            check_share(name, getattr(self, name))
        # A plugin that adds a name to a registry of the library has imported the library.
        library = sys.modules.get("attention.modules")
        for name, known, registry in (
            ("activation", ACTIVATIONS, "ACTIVATIONS"),
            ("norm", NORMS, "NORMS"),
            ("qk_norm", NORMS, "NORMS"),
            ("norm_placement", NORM_PLACEMENTS, ""),
            ("positions", POSITIONS, "POSITIONS"),
            ("kernel_init", INITIALIZERS, "INITIALIZERS"),
            ("implementation", IMPLEMENTATIONS, ""),
            ("tie", TIES, ""),
            ("pooling", POOLINGS, "POOLINGS"),
        ):
            if getattr(self, name, None) is not None:
                one_of(name, getattr(self, name), tuple(getattr(library, registry, known)))
        if self.num_heads % (self.num_kv_heads or self.num_heads):
            raise ValueError(
                f"num_heads={self.num_heads} is not divisible by num_kv_heads={self.num_kv_heads}"
            )
        if self.head_width is None and self.width % self.num_heads:
            raise ValueError(
                f"width={self.width} is not divisible by num_heads={self.num_heads}: change one of "
                "them, or set head_width"
            )

    def library(self) -> Any:  # noqa: ANN401 - its type would import jax
        """Return the `TransformerConfig` with these fields; this imports jax.

        Raises:
            ValueError: what the library alone can check.
        """
        from attention.modules import TransformerConfig

        others = ("experts", "pooling", "patch_size")
        tree = {name: value for name, value in as_tree(self).items() if name not in others}
        return TransformerConfig(**tree)


@dataclass(frozen=True, kw_only=True)
class _WordModel(_Transformer):
    """Fields of Transformers that score the words of a vocabulary."""

    tie: str = option("output", "token tables that are one: none, output, all or embeddings")
    logit_scale: float = option(1.0, "factor of the scores of a tied vocabulary")
    logit_softcap: float | None = option(None, "bound of the scores of a tied vocabulary")


@dataclass(frozen=True, kw_only=True)
class EncoderModel(_WordModel):
    """A Transformer that reads in both directions and predicts words."""

    encoder_layers: int = option(2, "blocks of the encoder")


@dataclass(frozen=True, kw_only=True)
class ClassifierModel(_Transformer):
    """A Transformer that predicts one class of a whole input."""

    encoder_layers: int = option(2, "blocks of the encoder")
    pooling: str = option("mean", f"how one vector is made of all: {', '.join(POOLINGS)}")
    patch_size: int = option(2, "pixels of a side of a patch of an image, which is read as a token")


@dataclass(frozen=True, kw_only=True)
class DecoderModel(_WordModel):
    """A Transformer that predicts the next token."""

    decoder_layers: int = option(2, "blocks of the decoder")
    experts: ExpertsPart | None = None


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderModel(_WordModel):
    """A Transformer that reads a source and writes a target."""

    encoder_layers: int = option(2, "blocks of the encoder")
    decoder_layers: int = option(2, "blocks of the decoder")


@dataclass(frozen=True, kw_only=True)
class RecurrentModel:
    """A recurrent encoder-decoder, with the fields of `attention.modules.RecurrentConfig`."""

    embedding_width: int = option(96, "D, width of the embeddings")
    hidden: int = option(128, "F, width of the state of each cell")
    cell: str = option("gru", f"one of {', '.join(CELLS)}")
    attention: str = option("additive", f"one of {', '.join(ATTENTIONS)}")
    max_length: int = option(48, "longest sequence, in tokens")
    dropout: float = option(0.0, "rate on the embeddings")

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("embedding_width", "hidden", "max_length"):
            check_at_least(name, getattr(self, name), 1)
        check_share("dropout", self.dropout)
        one_of("cell", self.cell, CELLS)
        one_of("attention", self.attention, ATTENTIONS)

    def library(self) -> Any:  # noqa: ANN401 - its type would import jax
        """Return the `RecurrentConfig` with these fields; this imports jax."""
        from attention.modules import RecurrentConfig

        return RecurrentConfig(**as_tree(self))


@dataclass(frozen=True, kw_only=True)
class SkipGramModel:
    """One vector for each word."""

    width: int = option(96, "D, width of the vectors")

    def __post_init__(self) -> None:
        """Check the fields."""
        check_at_least("width", self.width, 1)

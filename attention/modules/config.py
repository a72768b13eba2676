"""Sizes and choices of a Transformer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from flax import nnx
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from attention.modules.context import check_names
from attention.modules.layers import INITIALIZERS, NORMS, Activation, activation_of, named
from attention.modules.numbers import (
    check_count,
    check_dtype,
    check_number,
    check_rate,
    resolve_heads,
)
from attention.modules.positions import POSITIONS, Relative, Rotary, resolve_scale
from attention.primitives.attend import IMPLEMENTATIONS
from attention.primitives.choice import one_of

Overrides = Mapping[str, Any]

# name -> f(config, rngs) to the first and to the last sublayer of a block. Add your own.
MIXERS: dict[str, Callable[[Any, nnx.Rngs], Any]] = {}
FEED_FORWARDS: dict[str, Callable[[Any, nnx.Rngs], Any]] = {}


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """Choices of a block, which `TransformerConfig.per_layer` may override.

    A field that is a name in a registry, which users may add to, may also be a function like those
    in the registry; positions are a name.

    Attributes:
        num_heads: N query heads.
        num_kv_heads: K key/value heads, a divisor of N; N if None, 1 for multi-query attention.
        head_width: H, D / N if None.
        value_width: Hv, H if None.
        hidden: F, hidden width of the feed-forward layer.
        mixer: first sublayer of a block: a function `(config, rngs)` to a layer, of `MIXERS`.
        cross_attention: whether blocks of a decoder with an encoder have cross-attention.
        feed_forward: last sublayer of a block, of `FEED_FORWARDS`.
        activation: of the feed-forward layer, of `ACTIVATIONS`.
        gated: whether the feed-forward layer is gated (Shazeer 2020).
        norm: "layer", "rms", or another of `NORMS`.
        norm_placement: "pre" (before each sublayer), "post" (after the residual sum) or "both"
            (before and after each sublayer, before the sum; Gemma 2).
        norm_epsilon: added to the variance.
        qk_norm: norm of queries and keys, of `NORMS`; None for none.
        positions: "none", "sinusoidal", "learned", "rotary", "alibi", "relative", or another of
            `POSITIONS`.
        rotary: base and scaling of rotary positions, a `Rotary` or its fields.
        use_bias: whether the linear layers of blocks have biases.
        qkv_bias: the same for queries, keys and values; `use_bias` if None.
        attention_scale: factor of the products of queries and keys, 1/√H if None.
        softcap: bound of attention scores, none if None (Gemma 2).
        window: number of tokens on either side that self-attention may attend to, as `before` of
            `masks.window`; any if None.
        kernel_init: initializer of the kernels, of `INITIALIZERS`.
        dropout: rate on embeddings and on the output of every sublayer.
        attention_dropout: rate on the attention weights.
        implementation: of attention, as in `attention.attend`.
        dtype: of the computation; that of the parameters if None.
        param_dtype: of the parameters.
    """

    num_heads: int = 4
    num_kv_heads: int | None = None
    head_width: int | None = None
    value_width: int | None = None
    hidden: int = 512
    mixer: str | Callable[..., Any] = "attention"
    cross_attention: bool = True
    feed_forward: str | Callable[..., Any] = "dense"
    activation: str | Activation = "relu"
    gated: bool = False
    norm: str | Callable[..., Any] = "layer"
    norm_placement: str = "pre"
    norm_epsilon: float = 1e-6
    qk_norm: str | Callable[..., Any] | None = None
    positions: str = "sinusoidal"
    rotary: Rotary = field(default_factory=Rotary)
    use_bias: bool = True
    qkv_bias: bool | None = None
    attention_scale: float | None = None
    softcap: float | None = None
    window: int | None = None
    kernel_init: str | Initializer = "lecun_normal"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    implementation: str | None = None
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = "float32"


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(BlockConfig):
    """Sizes and choices of a Transformer: the fields of `BlockConfig`, and those of the model.

    Attributes:
        width: D, width of the vectors.
        relative: buckets of relative positions, a `Relative` or its fields.
        max_length: number of positions, if they are added to embeddings (learned, sinusoidal). With
            other positions a model reads any number of tokens; a language model that generates
            caches the last `max_length`.
        encoder_layers: number of encoder blocks.
        decoder_layers: number of decoder blocks.
        tie: which token tables are one: "none"; "output" (target embedding and output); "all"
            (source embedding too; Press and Wolf 2017); "embeddings" (source and target
            embedding, as of T5 1.1).
        output_bias: whether the scores of the vocabulary have a bias.
        embedding_scale: factor of token embeddings, "sqrt_width" for √D.
        embedding_norm: whether embeddings are normalised.
        num_token_types: number of token type embeddings, as of BERT.
        embedding_init: initializer of the tables; normal with variance 1/D if None.
        logit_scale: factor of the scores of a tied vocabulary.
        logit_softcap: bound of the scores of a tied vocabulary, none if None (Gemma 2).
        scan: whether layers that repeat are scanned; if not, they are unrolled.
        remat: whether the backward pass recomputes the inside of each block, to save memory.
        per_layer: fields of `BlockConfig` that differ between layers: a list of overrides, which
            the layers cycle through, or a function from the index of a layer to its overrides.
    """

    width: int = 128
    relative: Relative = field(default_factory=Relative)
    max_length: int = 128
    encoder_layers: int = 2
    decoder_layers: int = 2
    tie: str = "output"
    output_bias: bool = False
    embedding_scale: float | str = "sqrt_width"
    embedding_norm: bool = False
    num_token_types: int = 0
    embedding_init: str | Initializer | None = None
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    scan: bool = True
    remat: bool = True
    per_layer: Sequence[Overrides] | Callable[[int], Overrides] = ()

    def __new__(cls, **given: object) -> Self:
        """Raise a TypeError for a name that is no field, with the nearest one."""
        check_names("a TransformerConfig has no field", given, [each.name for each in fields(cls)])
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check all fields."""
        for name in ("width", "hidden", "max_length", "value_width"):
            check_count(name, getattr(self, name), at_least=1)
        for name in ("window", "encoder_layers", "decoder_layers", "num_token_types"):
            check_count(name, getattr(self, name), at_least=0)
        for name in ("attention_scale", "softcap", "logit_scale", "logit_softcap"):
            check_number(name, getattr(self, name), above=0)
        check_number("norm_epsilon", self.norm_epsilon, at_least=0)
        check_rate("dropout", self.dropout)
        check_rate("attention_dropout", self.attention_dropout)
        check_dtype("dtype", self.dtype)
        check_dtype("param_dtype", self.param_dtype)
        resolve_scale(self.embedding_scale, self.width, "embedding_scale")
        activation_of(self.activation)
        named("norm", self.norm, "NORMS", NORMS)
        if self.qk_norm is not None:
            named("qk_norm", self.qk_norm, "NORMS", NORMS)
        named("mixer", self.mixer, "MIXERS", MIXERS)
        named("feed_forward", self.feed_forward, "FEED_FORWARDS", FEED_FORWARDS)
        one_of("norm_placement", self.norm_placement, ("pre", "post", "both"))
        one_of("positions", self.positions, tuple(POSITIONS), registry="POSITIONS")
        one_of("tie", self.tie, ("none", "output", "all", "embeddings"))
        changes_logits = self.logit_scale != 1 or self.logit_softcap is not None
        if changes_logits and self.tie in ("none", "embeddings"):
            raise ValueError(
                f"logit_scale and logit_softcap need tie='output' or 'all', got tie={self.tie!r}"
            )
        if self.implementation is not None:
            one_of("implementation", self.implementation, [one.name for one in IMPLEMENTATIONS])
        for name in ("kernel_init", "embedding_init"):
            self.initializer(name)
        heads = self.num_heads, self.num_kv_heads, self.head_width
        _, head_width = resolve_heads(self.width, *heads)
        for name, kind in (("rotary", Rotary), ("relative", Relative)):
            object.__setattr__(self, name, _from_fields(name, getattr(self, name), kind))
        even = POSITIONS[self.positions].even
        size = head_width if even == "head_width" else getattr(self, even or "width")
        if even is not None and size % 2:
            raise ValueError(f"{self.positions} positions need an even {even}, got {size}")
        if isinstance(self.per_layer, str) or not isinstance(self.per_layer, Sequence | Callable):
            raise ValueError(f"per_layer must be a list or a function, got {self.per_layer!r}")
        if not callable(self.per_layer):
            object.__setattr__(self, "per_layer", tuple(self.per_layer))
            for index in range(len(self.per_layer)):
                self.layer(index)

    def __hash__(self) -> int:
        """Hash the sizes: overrides are dicts, which have no hash."""
        return hash((self.width, self.hidden, self.encoder_layers, self.decoder_layers))

    def overrides(self, index: int) -> Overrides:
        """Return the fields of `per_layer` for the layer with this index."""
        if callable(self.per_layer):
            return self.per_layer(index)
        return self.per_layer[index % len(self.per_layer)] if self.per_layer else {}

    def layer(self, index: int) -> "TransformerConfig":
        """Return the config of the layer with this index, or raise a ValueError for `per_layer`."""
        overrides = self.overrides(index)
        try:
            _check_fields("blocks have", overrides, BlockConfig)
            config = replace(self, **{"per_layer": (), **overrides})
            own, common = POSITIONS[config.positions], POSITIONS[self.positions]
            is_none = not own.rotary and (common.embed or common.score)
            if "positions" in overrides and (own.embed or own.score or is_none):
                raise ValueError(
                    "positions may be one that rotates, or 'none' if those of the model rotate: "
                    f"got {config.positions!r} beside {self.positions!r}"
                )
        except ValueError as error:
            raise ValueError(f"per_layer: {error}") from None
        return config

    def initializer(self, name: str) -> Initializer | None:
        """Return the initializer of a field, "kernel_init" or "embedding_init"."""
        given = getattr(self, name)
        return None if given is None else named(name, given, "INITIALIZERS", INITIALIZERS)

    def linear_options(self, rngs: nnx.Rngs) -> dict[str, Any]:
        """Return arguments of `linear`, for all linear layers; biases are decided for each."""
        options = {"dtype": self.dtype, "param_dtype": self.param_dtype, "rngs": rngs}
        return {"kernel_init": self.initializer("kernel_init"), **options}

    def make_norm(self, rngs: nnx.Rngs) -> Any:  # noqa: ANN401 - any module
        """Make a norm of D."""
        given = {"dtype": self.dtype, "param_dtype": self.param_dtype, "epsilon": self.norm_epsilon}
        return named("norm", self.norm, "NORMS", NORMS)(self.width, rngs=rngs, **given)


def _check_fields(owner: str, given: Iterable[str], kind: type) -> None:
    check_names(f"{owner} no field", given, [each.name for each in fields(kind)], ValueError)


def _from_fields(name: str, given: Any, kind: type) -> Any:  # noqa: ANN401 - an object of the kind
    """Return what was given for a field, made from its own fields if these were given."""
    if isinstance(given, kind):
        return given
    if not hasattr(given, "keys"):  # a mapping, or a ConfigDict, which is none
        raise ValueError(f"{name} must be a {kind.__name__} or a dict of its fields, got {given!r}")
    _check_fields(f"{name} has", given, kind)
    return kind(**given)

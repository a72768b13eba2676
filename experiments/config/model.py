"""Configs of models: those of the library with the defaults of the experiments, and decoding.

`UNREAD` names the fields that an architecture does not read: configs and flags do not have them.
"""

from dataclasses import dataclass, field, fields
from functools import partial
from typing import ClassVar

from attention.modules import POOLINGS, RecurrentConfig, Rotary, TransformerConfig
from attention.modules.numbers import check_number
from experiments.config.build import Part, option
from experiments.errors import one_of
from experiments.registry import METRICS

# `train.dtype` decides the dtype of the computation, and no task has token types.
_OTHERS = frozenset({"dtype", "param_dtype", "num_token_types"})
DEFAULT_METRICS = ("exact_match", "bleu", "chrf")
_OF_WORDS = frozenset({"tie", "output_bias", "logit_scale", "logit_softcap"})


@dataclass(frozen=True, kw_only=True)
class ExpertsPart(Part):
    """Mixture of experts in the feed-forward layer of some blocks."""

    number: int = option(4, "experts of a layer", least=2)
    every: int = option(2, "one of so many layers has experts", least=1)
    capacity_factor: float = option(1.25, "tokens of an expert in training ÷ its share", above=0)
    balance: float = option(0.01, "factor of the balance loss", least=0)


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderModel(TransformerConfig):
    """A Transformer that reads a source and writes a target."""

    UNREAD: ClassVar[frozenset[str]] = _OTHERS
    width: int = 96
    hidden: int = 256
    positions: str = "rotary"
    rotary: Rotary = field(default_factory=partial(Rotary, original_length=48))
    max_length: int = 48

    def __post_init__(self) -> None:
        """Check the fields, as the library and for at least one layer."""
        super().__post_init__()
        check_number("encoder_layers", self.encoder_layers, at_least=1)
        check_number("decoder_layers", self.decoder_layers, at_least=1)


@dataclass(frozen=True, kw_only=True)
class EncoderModel(EncoderDecoderModel):
    """A Transformer that reads in both directions and predicts words."""

    UNREAD: ClassVar[frozenset[str]] = _OTHERS | {"decoder_layers", "cross_attention"}


@dataclass(frozen=True, kw_only=True)
class ClassifierModel(EncoderDecoderModel):
    """A Transformer that predicts one class of a whole input.

    Attributes:
        pooling: how one vector is made of all, a name in `POOLINGS`.
        patch_size: pixels of a side of a patch of an image, which is read as a token.
    """

    UNREAD: ClassVar[frozenset[str]] = EncoderModel.UNREAD | _OF_WORDS
    pooling: str = "mean"
    patch_size: int = 2

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        one_of("pooling", self.pooling, POOLINGS)
        check_number("patch_size", self.patch_size, at_least=1)


@dataclass(frozen=True, kw_only=True)
class DecoderModel(EncoderDecoderModel):
    """A Transformer that predicts the next token.

    Attributes:
        experts: mixture of experts; None for dense layers.
    """

    UNREAD: ClassVar[frozenset[str]] = _OTHERS | {"encoder_layers", "cross_attention"}
    experts: ExpertsPart | None = field(default=None, metadata={"part": True})


@dataclass(frozen=True, kw_only=True)
class RecurrentModel(RecurrentConfig):
    """A recurrent encoder-decoder."""

    UNREAD: ClassVar[frozenset[str]] = _OTHERS
    embedding_width: int = 96
    hidden: int = 128
    max_length: int = 48


def without_own_fields(config: TransformerConfig | RecurrentConfig) -> object:
    """Return the config of a model as the class of the library, whose fields are saved with it."""
    kind = TransformerConfig if isinstance(config, TransformerConfig) else RecurrentConfig
    return kind(**{each.name: getattr(config, each.name) for each in fields(kind)})


@dataclass(frozen=True, kw_only=True)
class SkipGramModel(Part):
    """One vector for each word."""

    width: int = option(96, "D, width of the vectors", least=1)


@dataclass(frozen=True, kw_only=True)
class SearchPart(Part):
    """Greedy decoding, or beam search if `num_beams` is above 1."""

    num_beams: int = option(1, "hypotheses of a sentence", least=1)
    hypotheses: int = option(100, "hypotheses at once, of all sentences", least=1)
    length_penalty: float = option(0.0, "alpha of the length penalty of GNMT; 0: none")
    n_best: int = option(1, "translations of a sentence with --format=json", least=1)
    metrics: tuple[str, ...] = option(DEFAULT_METRICS, "of the translations", among=METRICS)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.n_best > self.num_beams:
            raise ValueError(f"n_best={self.n_best} is more than num_beams={self.num_beams}")


@dataclass(frozen=True, kw_only=True)
class SamplingPart(Part):
    """Random tokens, without the least probable ones."""

    strategy: str = option("sample", "sample, or greedy", among=("sample", "greedy"))
    temperature: float = option(0.8, "of the distribution; below 1 it is narrower")
    top_k: int = option(0, "most probable tokens that may be drawn; 0: all", least=0)
    top_p: float = option(0.95, "probability of the tokens that may be drawn")
    min_p: float = option(0.0, "lowest probability of a token ÷ that of the most probable one")
    seed: int = option(0, "of the random tokens", least=0, below=2**32)
    max_tokens: int = option(300, "longest continuation", least=1)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if not 1e-30 <= self.temperature <= 1e30:
            raise ValueError(
                f"temperature must be in [1e-30, 1e30], got {self.temperature}; for 0 choose "
                "strategy=greedy"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must be in [0, 1], got {self.min_p}")


@dataclass(frozen=True, kw_only=True)
class PretrainedPart(SamplingPart):
    """Text generation with a released checkpoint."""

    strategy: str = option("auto", "auto, sample, greedy", among=("auto", "sample", "greedy"))
    max_tokens: int = option(100, "longest continuation", least=1)
    num_beams: int = option(1, "above 1: beam search, in place of sampling", least=1)
    length_penalty: float = option(0.0, "alpha of the length penalty of GNMT; 0: none")

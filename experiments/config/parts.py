"""Parts of a config, by what they decide: data and batches, model, decoding, training, mesh.

`UNREAD` names the fields that an architecture does not read: configs and flags do not have them.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, TypeVar

from attention.modules import POOLINGS, RecurrentConfig, Rotary, TransformerConfig
from attention.modules.numbers import check_number
from experiments.config.build import Part, option
from experiments.errors import one_of
from experiments.registry import EVALUATORS, LOSSES, METRICS

SMALLEST_TRAIN = 1_000  # fewer toy sentences or documents need not contain every word
TRAIN_PER_SYMBOL = 20  # fewer random sequences need not contain every symbol
SUBWORDS = ("bpe", "unigram", "char", "word")
SMALLEST_SUBWORDS = 260  # 4 special tokens and 256 bytes
# `train.dtype` decides the dtype of the computation, and no task has token types.
_OTHERS = frozenset({"dtype", "param_dtype", "num_token_types"})
DEFAULT_METRICS = ("exact_match", "bleu", "chrf")
_OF_WORDS = frozenset({"tie", "output_bias", "logit_scale", "logit_softcap"})
SCHEDULES = ("constant", "linear", "cosine", "inverse_sqrt")
# Values of the validation split that training can follow without evaluators.
MONITORED = ("loss", "nll", "accuracy")
MODE_OF = dict.fromkeys(("loss", "nll", "perplexity"), "min") | dict.fromkeys(
    ("accuracy", "exact_match", "bleu", "tok_bleu", "chrf"), "max"
)
UNITS = ("steps", "epochs", "examples", "tokens")
AnyTrainPart = TypeVar("AnyTrainPart", bound="TrainPart")


@dataclass(frozen=True, kw_only=True)
class Sizes(Part):
    """Examples of each split."""

    train: int = option(20_000, least=1)
    validation: int = option(1_000, least=1)
    test: int = option(1_000, least=1)


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Name of each split, as of a file or of a split of TFDS."""

    train: str = "train"
    validation: str = "validation"
    test: str = "test"


@dataclass(frozen=True, kw_only=True)
class Data(Part):
    """Base of the config of a dataset, which also has a field `name`.

    `is_shared` tells whether source and target have one vocabulary, as the `text` of its source
    does; it is None for subwords, of which `config.text` decides it.
    """

    is_shared: ClassVar[bool | None] = False


@dataclass(frozen=True, kw_only=True)
class RandomData(Data):
    """Base of the config of generated data."""

    seed: int = option(0, "of the data", least=0)


@dataclass(frozen=True, kw_only=True)
class TextPart(Part):
    """Subwords of a corpus."""

    kind: str = option("bpe", f"one of {', '.join(SUBWORDS)}", among=SUBWORDS)
    size: int = option(8_000, "subwords of a vocabulary; 0: by the size of the text")
    joint: bool = option(True, "whether both languages have the same subwords")
    dropout: float = option(
        0.0, "share of BPE merges left out, anew in each epoch", within="[0, 1)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("size", self.size, at_least=SMALLEST_SUBWORDS if self.size else 0)
        if self.dropout and self.kind != "bpe":
            raise ValueError(f"dropout={self.dropout} needs kind='bpe', got kind={self.kind!r}")


@dataclass(frozen=True, kw_only=True)
class _Batch(Part):
    microbatches: int = option(1, "parts of a batch, computed in turn to save memory", least=1)


@dataclass(frozen=True, kw_only=True)
class SentenceBatchPart(_Batch):
    """Sentences of similar length together; the longest bucket is `model.max_length`."""

    tokens: int = option(1_536, "positions of a batch, on either side", least=1)
    bucket_lengths: tuple[int, ...] = option((8, 11, 14, 21), "longest sentence of each bucket")

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.bucket_lengths, default=0) < 2:
            raise ValueError(f"bucket_lengths must be of at least 2, got {self.bucket_lengths}")


@dataclass(frozen=True, kw_only=True)
class PairBatchPart(SentenceBatchPart):
    """Sentence pairs, of similar length together or several in a row."""

    packed: bool = option(False, "several pairs in a row; False: one, of similar length in a batch")
    row_length: int = option(0, "positions of a packed row; 0: by the lengths of the data", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.row_length and not self.packed:
            raise ValueError(f"row_length={self.row_length} needs packed=True")


@dataclass(frozen=True, kw_only=True)
class TextBatchPart(_Batch):
    """Rows of running text, or of several sentences."""

    tokens: int = option(2_048, "positions of a batch", least=1)
    row_length: int = option(48, "positions of a row", least=2)


@dataclass(frozen=True, kw_only=True)
class ExampleBatchPart(_Batch):
    """A number of labelled examples."""

    size: int = option(64, "examples of a batch", least=1)


@dataclass(frozen=True, kw_only=True)
class SkipGramBatchPart(_Batch):
    """A number of words, each with a neighbour and some random words."""

    size: int = option(1_024, "words of a batch", least=1)
    window: int = option(4, "distance of the farthest neighbour, in words", least=1)
    negatives: int = option(8, "random words for each neighbour", least=1)
    threshold: float = option(
        1e-3, "frequency above which occurrences of a word are left out", within="(0, 1]"
    )


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

    num_beams: int = option(1, "hypotheses of a sentence in beam search; 1: greedy", least=1)
    hypotheses: int = option(100, "hypotheses that are computed at once", least=1)
    length_penalty: float = option(0.0, "alpha of GNMT; 0: no length penalty", within="[-5, 5]")
    n_best: int = option(1, "translations of a sentence with --format=json", least=1)
    metrics: tuple[str, ...] = option(DEFAULT_METRICS, "scores of the outputs", among=METRICS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_best > self.num_beams:
            raise ValueError(f"n_best={self.n_best} is more than num_beams={self.num_beams}")


@dataclass(frozen=True, kw_only=True)
class SamplingPart(Part):
    """Random tokens, without the least probable ones."""

    strategy: str = option("sample", "sample, or greedy", among=("sample", "greedy"))
    temperature: float = option(
        0.8, "below 1: narrower; for 0 choose strategy=greedy", within="[1e-30, 1e30]"
    )
    top_k: int = option(0, "most probable tokens that may be drawn; 0: all", least=0)
    top_p: float = option(0.95, "probability of the tokens that may be drawn", within="(0, 1]")
    min_p: float = option(
        0.0, "lowest probability of a token ÷ that of the most probable one", within="[0, 1]"
    )
    seed: int = option(0, "of the random tokens", within=f"[0, {2**32})")
    max_tokens: int = option(300, "longest continuation", least=1)


@dataclass(frozen=True, kw_only=True)
class PretrainedPart(SamplingPart):
    """Text generation with a released checkpoint."""

    strategy: str = option(
        "auto",
        "sample, greedy, or auto: greedy for an encoder-decoder, else sample",
        among=("auto", "sample", "greedy"),
    )
    max_tokens: int = option(100, "longest continuation", least=1)
    num_beams: int = option(1, "above 1: beam search, in place of sampling", least=1)
    length_penalty: float = option(0.0, "alpha of GNMT; 0: no length penalty", within="[-5, 5]")


@dataclass(frozen=True, kw_only=True)
class MeshPart(Part):
    """Number of devices along each axis of the mesh; `experiments.sharding` uses it."""

    data: int = option(0, "parts of a batch, each on other devices; 0: all devices left", least=0)
    fsdp: int = option(1, "shards of parameters and optimizer, and of a batch too", least=1)
    tensor: int = option(1, "shards of heads, hidden layers and vocabulary", least=1)
    sequence: int = option(1, "shards of the positions of a row", least=1)


@dataclass(frozen=True, kw_only=True)
class TrainPart(Part):
    """Adam with a learning rate schedule, and the intervals of measurements and checkpoints."""

    steps: int = option(1_000, "optimizer steps", least=1)
    duration: str = option("", "in place of steps: 10 epochs, 5e4 examples or 2e6 tokens")
    start_from: str = option("", "workdir or folder of released weights to take parameters from")
    start_except: tuple[str, ...] = option((), "parts not taken from there, as in ('output',)")
    schedule: str = option("cosine", f"after the warm-up: {', '.join(SCHEDULES)}", among=SCHEDULES)
    learning_rate: float = option(3e-3, "highest learning rate", above=0)
    warmup_steps: int = option(100, "steps in which the learning rate rises from 0", least=0)
    clip_norm: float = option(1.0, "largest norm of the gradient", above=0)
    beta1: float = option(0.9, "of Adam", within="[0, 1)")
    beta2: float = option(0.98, "of Adam", within="[0, 1)")
    epsilon: float = option(1e-9, "of Adam", above=0)
    weight_decay: float = option(0.1, "factor of decoupled weight decay", within="[0, 1)")
    decay_all: bool = option(False, "whether biases, norms and embeddings decay too")
    log_every: int = option(50, "steps between two rows of training metrics", least=1)
    evaluate_every: int = option(100, "steps between two measurements of validation", least=1)
    sample_every: int = option(500, "steps between two samples of the output", least=1)
    checkpoint_every: int = option(500, "steps between two checkpoints, if patience is 0", least=1)
    checkpoint_minutes: float = option(
        10.0, "minutes after which a checkpoint is saved; 0: never", least=0
    )
    skip_nonfinite: int = option(
        0, "non-finite steps in a row that end a run; 0: the first one ends it", least=0
    )
    average: int = option(1, "checkpoints whose mean is measured and used", least=1)
    ema: float = option(
        0.0, "decay of a moving average of parameters that is used; 0: none", within="[0, 1)"
    )
    evaluators: tuple[str, ...] = option((), "metrics and evaluators of each validation")
    monitor: str = option("loss", "value of the validation split that patience follows")
    monitor_mode: str = option("", "min or max, which is best; '': known by the name of monitor")
    patience: int = option(0, "evaluations without gain that end a run; 0: never", least=0)
    dtype: str = option("float32", "computes in float32 or bfloat16", among=("float32", "bfloat16"))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.evaluators:
            one_of("evaluators", name, (*METRICS, *EVALUATORS))
        if not self.evaluators:
            one_of("monitor", self.monitor, MONITORED)
        if self.monitor_mode or self.monitor not in MODE_OF:
            one_of(
                f"monitor_mode, for monitor={self.monitor!r},", self.monitor_mode, ("min", "max")
            )
        if self.start_except and not self.start_from:
            raise ValueError(f"start_except={self.start_except} needs start_from, which is empty")
        if self.duration:
            _parse_duration(self.duration)
        elif self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} is not less than steps={self.steps}"
            )
        if self.ema and self.average > 1:
            raise ValueError(
                f"ema={self.ema} excludes average={self.average}: choose average=1 or ema=0.0"
            )

    @property
    def is_lower_better(self) -> bool:
        """Whether the lowest of the monitored values is the best."""
        return (self.monitor_mode or MODE_OF[self.monitor]) == "min"

    @property
    def checkpoint_interval(self) -> int:
        """Steps between two checkpoints; with patience each evaluation has one, and may be used."""
        return self.evaluate_every if self.patience else self.checkpoint_every


def fitting_warmup(warmup_steps: int, steps: int) -> int:
    """Return the steps of the warm-up; a quarter of all, if it does not end before the training."""
    return warmup_steps if warmup_steps < steps else steps // 4


@dataclass(frozen=True, kw_only=True)
class LabelTrainPart(TrainPart):
    """Training by a loss of logits and labels."""

    loss: str = option("cross_entropy", "function of logits and labels", among=LOSSES)
    label_smoothing: float = option(0.0, "probability moved to all tokens", within="[0, 1)")
    z_loss: float = option(0.0, "coefficient of the squared logsumexp of the logits", least=0)


def _parse_duration(text: str) -> tuple[Fraction, str]:
    """Return the number and the unit of a duration, as in "10 epochs"."""
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:e-?\d+)?)\s+(\w+)\s*", text)
    if not match or not 0 < float(match[1]) < math.inf:
        raise ValueError(f"duration must be a number and a unit, as in '10 epochs', got {text!r}")
    one_of("duration: the unit", match[2], UNITS)
    return Fraction(match[1]), match[2]


def with_steps(train: AnyTrainPart, epoch: Callable[[], Any]) -> AnyTrainPart:
    """Return a training with the steps of its `duration`, rounded up; `epoch` counts the data."""
    if not train.duration:
        return train
    (number, unit), data = _parse_duration(train.duration), epoch()
    in_an_epoch = {"epochs": 1, **data._asdict()}[unit]
    steps = math.ceil(number * data.steps / in_an_epoch)  # exact, as these are fractions
    print(f"{train.duration} are {steps:,} steps")
    warmup = fitting_warmup(train.warmup_steps, steps)
    return replace(train, steps=steps, duration="", warmup_steps=warmup)

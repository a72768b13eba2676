"""Datasets, how their text becomes tokens, and how examples are put into batches."""

from dataclasses import dataclass
from typing import ClassVar

from attention.modules.numbers import check_number
from experiments.config.build import Part, option

SMALLEST_TRAIN = 1_000  # fewer toy sentences or documents need not contain every word
TRAIN_PER_SYMBOL = 20  # fewer random sequences need not contain every symbol
SUBWORDS = ("bpe", "unigram", "char", "word")
SMALLEST_SUBWORDS = 260  # 4 special tokens and 256 bytes


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

    `is_shared` tells whether source and target have one vocabulary; it is None for subwords, of
    which `config.text` decides it.
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
        0.0, "share of BPE merges left out, anew in each epoch", least=0, below=1
    )

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_number("size", self.size, at_least=SMALLEST_SUBWORDS if self.size else 0)
        if self.dropout and self.kind != "bpe":
            raise ValueError(f"dropout={self.dropout} needs kind='bpe', got kind={self.kind!r}")


@dataclass(frozen=True, kw_only=True)
class _Batch(Part):
    microbatches: int = option(1, "parts of a batch, one after another, for memory", least=1)


@dataclass(frozen=True, kw_only=True)
class SentenceBatchPart(_Batch):
    """Sentences of similar length together; the longest bucket is `model.max_length`."""

    tokens: int = option(1_536, "positions of a batch, on either side", least=1)
    bucket_lengths: tuple[int, ...] = option((8, 11, 14, 21), "longest sentence of each bucket")

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if any(length < 2 for length in self.bucket_lengths):
            raise ValueError(f"bucket_lengths must be at least 2, got {self.bucket_lengths}")


@dataclass(frozen=True, kw_only=True)
class PairBatchPart(SentenceBatchPart):
    """Sentence pairs, of similar length together or several in a row."""

    packed: bool = option(False, "several pairs in a row; False: one, of similar length in a batch")
    row_length: int = option(0, "positions of a packed row; 0: by the lengths of the data", least=0)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.row_length and not self.packed:
            raise ValueError(f"row_length={self.row_length} needs packed=True")


@dataclass(frozen=True, kw_only=True)
class TextBatchPart(_Batch):
    """Rows of running text, or of several sentences."""

    tokens: int = option(2_048, "positions of a batch", least=1)
    row_length: int = option(48, "positions of a row", least=2)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.tokens < self.row_length:
            raise ValueError(
                f"tokens={self.tokens} does not fit a row of row_length={self.row_length}"
            )


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
    threshold: float = option(1e-3, "share of all words above which occurrences are left out")

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold must be in (0, 1], got {self.threshold}")

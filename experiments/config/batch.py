"""How examples are put into batches."""

from dataclasses import dataclass

from experiments.config.build import option
from experiments.errors import check_at_least


@dataclass(frozen=True, kw_only=True)
class _Batch:
    microbatches: int = option(1, "parts of a batch, one after another, to use less memory")

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("microbatches", "tokens", "size", "window", "negatives"):
            check_at_least(name, getattr(self, name, 1), 1)
        if any(length < 2 for length in getattr(self, "bucket_lengths", ())):
            raise ValueError(f"bucket_lengths must be at least 2, got {self.bucket_lengths}")


@dataclass(frozen=True, kw_only=True)
class SentenceBatchPart(_Batch):
    """Sentences of similar length together; the longest bucket is `model.max_length`."""

    tokens: int = option(1_536, "positions of a batch, on either side")
    bucket_lengths: tuple[int, ...] = option((8, 11, 14, 21), "longest sentence of each bucket")


@dataclass(frozen=True, kw_only=True)
class PairBatchPart(SentenceBatchPart):
    """Sentence pairs, of similar length together or several in a row."""

    packed: bool = option(False, "several pairs in a row; False: one, of similar length in a batch")
    row_length: int = option(0, "positions of a packed row; 0: chosen by the lengths of the data")

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_at_least("row_length", self.row_length, 0)
        if self.row_length and not self.packed:
            raise ValueError(f"row_length={self.row_length} needs packed=True")


@dataclass(frozen=True, kw_only=True)
class TextBatchPart(_Batch):
    """Rows of running text, or of several sentences."""

    tokens: int = option(2_048, "positions of a batch")
    row_length: int = option(48, "positions of a row")

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_at_least("row_length", self.row_length, 2)
        if self.tokens < self.row_length:
            raise ValueError(
                f"tokens={self.tokens} does not fit a row of row_length={self.row_length}"
            )


@dataclass(frozen=True, kw_only=True)
class ExampleBatchPart(_Batch):
    """A number of labelled examples."""

    size: int = option(64, "examples of a batch")


@dataclass(frozen=True, kw_only=True)
class SkipGramBatchPart(_Batch):
    """A number of words, each with a neighbour and some random words."""

    size: int = option(1_024, "words of a batch")
    window: int = option(4, "distance of the farthest neighbour, in words")
    negatives: int = option(8, "random words for each neighbour")
    threshold: float = option(1e-3, "share of all words above which occurrences are left out")

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold must be in (0, 1], got {self.threshold}")

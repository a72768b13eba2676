"""Datasets by name, and how their text becomes tokens."""

from dataclasses import dataclass
from typing import ClassVar

from experiments.config.build import Part, option
from experiments.errors import check_share, one_of

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

    Attributes:
        is_shared: whether source and target have one vocabulary; None for subwords, of which
            `config.text` decides it.
    """

    is_shared: ClassVar[bool | None] = False


@dataclass(frozen=True, kw_only=True)
class RandomData(Data):
    """Base of the config of generated data."""

    seed: int = option(0, "of the data", least=0)


@dataclass(frozen=True, kw_only=True)
class TextPart(Part):
    """Subwords of a corpus."""

    kind: str = option("bpe", f"one of {', '.join(SUBWORDS)}")
    size: int = option(8_000, "subwords of a vocabulary", least=SMALLEST_SUBWORDS)
    joint: bool = option(True, "whether both languages have the same subwords")
    dropout: float = option(0.0, "share of BPE merges that are left out, anew in each epoch")

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        one_of("kind", self.kind, SUBWORDS)
        check_share("dropout", self.dropout)
        if self.dropout and self.kind != "bpe":
            raise ValueError(f"dropout={self.dropout} needs kind='bpe', got kind={self.kind!r}")

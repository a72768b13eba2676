"""Datasets by name, and how their text becomes tokens."""

from dataclasses import dataclass, field, fields
from typing import ClassVar

from experiments.config.build import option
from experiments.errors import check_at_least, check_share, one_of

SMALLEST_TRAIN = 1_000  # fewer toy sentences or documents need not contain every word
TRAIN_PER_SYMBOL = 20  # fewer random sequences need not contain every symbol
POLICIES = ("refuse", "drop")
NOISES = ("mask", "delete", "infill", "permute")
SUBWORDS = ("bpe", "unigram", "char", "word")
SMALLEST_SUBWORDS = 260  # 4 special tokens and 256 bytes


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    def __post_init__(self) -> None:
        """Check the fields."""
        for one in fields(self):
            check_at_least(one.name, getattr(self, one.name), 1)


@dataclass(frozen=True, kw_only=True)
class Sizes(_Sizes):
    """Examples of each split."""

    train: int = 20_000
    validation: int = 1_000
    test: int = 1_000


@dataclass(frozen=True, kw_only=True)
class ToySizes(_Sizes):
    """Sentences of each split of the toy language."""

    train: int = 40_000
    validation: int = 1_000
    test: int = 1_000
    compositional: int = 1_000
    longer: int = 500

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_at_least("train", self.train, SMALLEST_TRAIN)


@dataclass(frozen=True, kw_only=True)
class ReverseSizes(Sizes):
    """Sequences of each split."""

    train: int = 50_000
    in_range: int = 1_000
    longer: int = 500


@dataclass(frozen=True, kw_only=True)
class SentimentSizes(Sizes):
    """Sentences of each split."""

    test: int = 2_000
    longer: int = 1_000


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Name of each split, as of a file or of a split of TFDS."""

    train: str = "train"
    validation: str = "validation"
    test: str = "test"


@dataclass(frozen=True, kw_only=True)
class _Data:
    """Fields of all datasets; `name` is that of the registry.

    Attributes:
        is_shared: whether source and target have one vocabulary; None if `text.joint` decides it.
    """

    is_shared: ClassVar[bool | None] = False


@dataclass(frozen=True, kw_only=True)
class _Random(_Data):
    seed: int = option(0, "of the data")

    def __post_init__(self) -> None:
        """Check the fields."""
        check_at_least("seed", self.seed, 0)


@dataclass(frozen=True, kw_only=True)
class ToyData(_Random):
    """The toy language, English and French."""

    name: str = "toy"
    sizes: ToySizes = field(default_factory=ToySizes)


@dataclass(frozen=True, kw_only=True)
class CharactersData(_Random):
    """A text file, or sentences of the toy language, character by character."""

    name: str = "characters"
    path: str = option("", "a text file; sentences of the toy language if ''")
    sentences: int = option(20_000, "sentences of the toy language")

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_at_least("sentences", self.sentences, 1)


@dataclass(frozen=True, kw_only=True)
class CopyData(_Random):
    """Random digits; the target equals the source."""

    is_shared: ClassVar[bool] = True
    name: str = "copy"
    shortest: int = option(10, "digits of the shortest sequence")
    longest: int = option(30, "digits of the longest sequence")
    sizes: Sizes = field(default_factory=Sizes)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_at_least("shortest", self.shortest, 1)
        check_at_least("longest", self.longest, self.shortest)
        check_at_least("sizes.train", self.sizes.train, TRAIN_PER_SYMBOL * 10)


@dataclass(frozen=True, kw_only=True)
class ReverseData(_Random):
    """Random integers; the target is the source from its end to its beginning."""

    is_shared: ClassVar[bool] = True
    name: str = "reverse"
    numbers: int = option(50, "different integers")
    longest_train: int = option(25, "integers of the longest training sequence")
    longest_test: int = option(30, "integers of the longest test sequence")
    sizes: ReverseSizes = field(default_factory=ReverseSizes)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_at_least("numbers", self.numbers, 1)
        check_at_least("longest_train", self.longest_train, 1)
        check_at_least("longest_test", self.longest_test, self.longest_train + 1)
        check_at_least("sizes.train", self.sizes.train, TRAIN_PER_SYMBOL * self.numbers)


@dataclass(frozen=True, kw_only=True)
class SummaryData(_Random):
    """Documents of a few short sentences, and a summary of one sentence."""

    is_shared: ClassVar[bool] = True
    name: str = "summary"
    shortest: int = option(3, "sentences of the shortest document")
    longest: int = option(5, "sentences of the longest document")
    sizes: Sizes = field(default_factory=lambda: Sizes(train=40_000))

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_at_least("shortest", self.shortest, 2)
        check_at_least("longest", self.longest, self.shortest)
        check_at_least("sizes.train", self.sizes.train, SMALLEST_TRAIN)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rate of each kind of noise."""

    permute: float = option(1.0, "share of documents whose sentences are permuted")
    infill: float = option(0.2, "share of tokens in spans that one mask replaces")
    mask: float = option(0.15, "probability of a mask in place of a token")
    delete: float = option(0.1, "probability that a token is deleted")

    def __post_init__(self) -> None:
        """Check the fields."""
        for one in fields(self):
            if not 0 <= getattr(self, one.name) <= 1:
                raise ValueError(f"{one.name} must be in [0, 1], got {getattr(self, one.name)}")


@dataclass(frozen=True, kw_only=True)
class DenoisingData(_Random):
    """Noised documents of the toy language, and the documents."""

    is_shared: ClassVar[bool] = True
    name: str = "denoising"
    passes: int = option(3, "over the training sentences, with other noise in each")
    sizes: Sizes = field(default_factory=lambda: Sizes(validation=600, test=600))
    noise: tuple[str, ...] = option(("permute", "infill"), f"in this order: {', '.join(NOISES)}")
    rates: Rates = field(default_factory=Rates)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_at_least("passes", self.passes, 1)
        check_at_least("sizes.train", self.sizes.train, SMALLEST_TRAIN)
        for split in ("validation", "test"):  # a document has at least two sentences
            check_at_least(f"sizes.{split}", getattr(self.sizes, split), 2)
        for name in self.noise:
            one_of("noise", name, NOISES)


@dataclass(frozen=True, kw_only=True)
class ScanData(_Random):
    """Files of SCAN (Lake and Baroni 2018)."""

    name: str = "scan"
    path: str = option("data/scan", "folder of the files")
    split: str = option("simple", "simple, or length: long commands are tested")
    cutoff: int = option(22, "split=length: most actions of a training command")
    validation: int = option(500, "training commands that are set aside")

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        one_of("split", self.split, ("simple", "length"))
        check_at_least("cutoff", self.cutoff, 1)
        check_at_least("validation", self.validation, 1)


@dataclass(frozen=True, kw_only=True)
class _Corpus(_Data):
    is_shared: ClassVar[None] = None
    path: str = option("", "folder of the data")
    source: str = option("en", "language that is read")
    target: str = option("de", "language that is written")
    tokenized: bool = option(False, "whether the text is tokenized: BLEU then counts its tokens")
    faults: str = option("refuse", "or drop: pairs with an empty side, bad bytes, too many words")
    longest: int = option(100, "words of the longest sentence")

    def __post_init__(self) -> None:
        """Check the fields."""
        one_of("faults", self.faults, POLICIES)
        check_at_least("longest", self.longest, 1)


@dataclass(frozen=True, kw_only=True)
class ParallelData(_Corpus):
    """Parallel text: two files whose lines are translations, or one with two columns."""

    name: str = "parallel"
    files: Splits = field(default_factory=Splits)


@dataclass(frozen=True, kw_only=True)
class TfdsData(_Corpus):
    """A translation dataset of TFDS that has been prepared."""

    name: str = "tfds"
    dataset: str = option("ted_hrlr_translate/pt_to_en", "name; a version after a colon")
    splits: Splits = field(default_factory=Splits)


@dataclass(frozen=True, kw_only=True)
class SentimentData(_Random):
    """Sentences that praise or blame."""

    longest: ClassVar[int] = 48  # words of a sentence
    name: str = "sentiment"
    sizes: SentimentSizes = field(default_factory=SentimentSizes)


@dataclass(frozen=True, kw_only=True)
class DigitsData(_Random):
    """Images of handwritten digits."""

    name: str = "digits"
    patch_size: int = option(2, "pixels of a side of a patch, which the model reads as a token")

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_at_least("patch_size", self.patch_size, 1)


@dataclass(frozen=True, kw_only=True)
class TextPart:
    """Subwords of a corpus."""

    kind: str = option("bpe", f"one of {', '.join(SUBWORDS)}")
    size: int = option(8_000, "subwords of a vocabulary")
    joint: bool = option(True, "whether both languages have the same subwords")
    dropout: float = option(0.0, "share of BPE merges that are left out, anew in each epoch")

    def __post_init__(self) -> None:
        """Check the fields."""
        one_of("kind", self.kind, SUBWORDS)
        check_at_least("size", self.size, SMALLEST_SUBWORDS)
        check_share("dropout", self.dropout)
        if self.dropout and self.kind != "bpe":
            raise ValueError(f"dropout={self.dropout} needs kind='bpe', got kind={self.kind!r}")

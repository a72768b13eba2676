"""Datasets by name, and how their text becomes tokens."""

from dataclasses import dataclass, field, fields
from typing import ClassVar

from experiments.config.build import Part, option
from experiments.errors import check_at_least, check_share, one_of
from experiments.registry import dataset

SMALLEST_TRAIN = 1_000  # fewer toy sentences or documents need not contain every word
TRAIN_PER_SYMBOL = 20  # fewer random sequences need not contain every symbol
POLICIES = ("refuse", "drop")
NOISES = ("mask", "delete", "infill", "permute")
SUBWORDS = ("bpe", "unigram", "char", "word")
SMALLEST_SUBWORDS = 260  # 4 special tokens and 256 bytes
SEQUENCES = "experiments.data"


@dataclass(frozen=True, kw_only=True)
class Sizes(Part):
    """Examples of each split."""

    train: int = option(20_000, least=1)
    validation: int = option(1_000, least=1)
    test: int = option(1_000, least=1)


@dataclass(frozen=True, kw_only=True)
class ToySizes(Sizes):
    """Sentences of each split of the toy language."""

    train: int = option(40_000, least=SMALLEST_TRAIN)
    compositional: int = option(1_000, least=1)
    longer: int = option(500, least=1)


@dataclass(frozen=True, kw_only=True)
class ReverseSizes(Sizes):
    """Sequences of each split."""

    train: int = option(50_000, least=1)
    in_range: int = option(1_000, least=1)
    longer: int = option(500, least=1)


@dataclass(frozen=True, kw_only=True)
class SummarySizes(Sizes):
    """Documents of each split."""

    train: int = option(40_000, least=SMALLEST_TRAIN)


@dataclass(frozen=True, kw_only=True)
class DenoisingSizes(Sizes):
    """Sentences of each split; a document has at least two."""

    train: int = option(20_000, least=SMALLEST_TRAIN)
    validation: int = option(600, least=2)
    test: int = option(600, least=2)


@dataclass(frozen=True, kw_only=True)
class SentimentSizes(Sizes):
    """Sentences of each split."""

    test: int = option(2_000, least=1)
    longer: int = option(1_000, least=1)


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


@dataset(source=f"{SEQUENCES}.toy:SOURCE", contains=("text", "pairs"))
@dataclass(frozen=True, kw_only=True)
class ToyData(RandomData):
    """The toy language, English and French."""

    name: str = "toy"
    sizes: ToySizes = field(default_factory=ToySizes)


@dataset(source="experiments.data.sentiment:SOURCE", contains=("text", "classes"))
@dataclass(frozen=True, kw_only=True)
class SentimentData(RandomData):
    """Sentences that praise or blame."""

    name: str = "sentiment"
    sizes: SentimentSizes = field(default_factory=SentimentSizes)


@dataclass(frozen=True, kw_only=True)
class TextFileData(RandomData):
    """Base of the config of a text; of one file, the end is for validation and tests."""

    path: str = option(
        "", "a file, or a folder of train.txt, validation.txt, test.txt; '' for toy sentences"
    )
    sentences: int = option(20_000, "sentences of the toy language", least=1)


@dataset(source=f"{SEQUENCES}.text_file:CHARACTERS", contains=("characters",))
@dataclass(frozen=True, kw_only=True)
class CharactersData(TextFileData):
    """A text, character by character."""

    name: str = "characters"


@dataset(source=f"{SEQUENCES}.text_file:LINES", contains=("text",))
@dataclass(frozen=True, kw_only=True)
class TextData(TextFileData):
    """A text, line by line, as subwords."""

    is_shared: ClassVar[None] = None
    name: str = "text"


@dataset(source=f"{SEQUENCES}.copy:SOURCE", contains=("pairs",))
@dataclass(frozen=True, kw_only=True)
class CopyData(RandomData):
    """Random digits; the target equals the source."""

    is_shared: ClassVar[bool] = True
    name: str = "copy"
    shortest: int = option(10, "digits of the shortest sequence", least=1)
    longest: int = option(30, "digits of the longest sequence")
    sizes: Sizes = field(default_factory=Sizes)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_at_least("longest", self.longest, self.shortest)
        check_at_least("sizes.train", self.sizes.train, TRAIN_PER_SYMBOL * 10)


@dataset(source=f"{SEQUENCES}.reverse:SOURCE", contains=("pairs",))
@dataclass(frozen=True, kw_only=True)
class ReverseData(RandomData):
    """Random integers; the target is the source from its end to its beginning."""

    is_shared: ClassVar[bool] = True
    name: str = "reverse"
    numbers: int = option(50, "different integers", least=1)
    longest_train: int = option(25, "integers of the longest training sequence", least=1)
    longest_test: int = option(30, "integers of the longest test sequence")
    sizes: ReverseSizes = field(default_factory=ReverseSizes)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_at_least("longest_test", self.longest_test, self.longest_train + 1)
        check_at_least("sizes.train", self.sizes.train, TRAIN_PER_SYMBOL * self.numbers)


@dataset(source=f"{SEQUENCES}.summary:SOURCE", contains=("text", "pairs"))
@dataclass(frozen=True, kw_only=True)
class SummaryData(RandomData):
    """Documents of a few short sentences, and a summary of one sentence."""

    is_shared: ClassVar[bool] = True
    name: str = "summary"
    shortest: int = option(3, "sentences of the shortest document", least=2)
    longest: int = option(5, "sentences of the longest document")
    sizes: SummarySizes = field(default_factory=SummarySizes)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_at_least("longest", self.longest, self.shortest)


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


@dataset(source=f"{SEQUENCES}.denoising:SOURCE", contains=("pairs",))
@dataclass(frozen=True, kw_only=True)
class DenoisingData(RandomData):
    """Noised documents of the toy language, and the documents."""

    is_shared: ClassVar[bool] = True
    name: str = "denoising"
    passes: int = option(3, "over the training sentences, with other noise in each", least=1)
    sizes: DenoisingSizes = field(default_factory=DenoisingSizes)
    noise: tuple[str, ...] = option(("permute", "infill"), f"in this order: {', '.join(NOISES)}")
    rates: Rates = field(default_factory=Rates)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        for name in self.noise:
            one_of("noise", name, NOISES)


@dataset(source=f"{SEQUENCES}.scan:SOURCE", contains=("pairs",))
@dataclass(frozen=True, kw_only=True)
class ScanData(RandomData):
    """Files of SCAN (Lake and Baroni 2018)."""

    name: str = "scan"
    path: str = option("data/scan", "folder of the files")
    split: str = option("simple", "simple, or length: long commands are tested")
    cutoff: int = option(22, "split=length: most actions of a command that is not tested", least=1)
    validation: int = option(500, "commands of the validation split, drawn at random", least=1)
    validation_from: int = option(
        0, "split=length: fewest actions of a validation command, instead of drawing; 0: draw"
    )

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        one_of("split", self.split, ("simple", "length"))
        most = self.cutoff if self.split == "length" else 0
        if not 0 <= self.validation_from <= most:
            raise ValueError(
                f"validation_from must be from 0 to {most}, the cutoff with split=length, "
                f"got {self.validation_from}"
            )


@dataclass(frozen=True, kw_only=True)
class CorpusData(Data):
    """Base of the config of pairs in files, whose text is subwords."""

    is_shared: ClassVar[None] = None
    path: str = option("", "folder of the data")
    source: str = option("en", "language that is read")
    target: str = option("de", "language that is written")
    tokenized: bool = option(False, "whether the text is tokenized: BLEU then counts its tokens")
    faults: str = option("refuse", "or drop: pairs with an empty side, bad bytes, too many words")
    longest: int = option(100, "words of the longest sentence", least=1)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        one_of("faults", self.faults, POLICIES)


@dataset(source=f"{SEQUENCES}.parallel:SOURCE", contains=("text", "pairs", "classes"))
@dataclass(frozen=True, kw_only=True)
class ParallelData(CorpusData):
    """Parallel text: two files whose lines are translations, or one with two columns."""

    name: str = "parallel"
    files: Splits = field(default_factory=Splits)


@dataset(source=f"{SEQUENCES}.csv:SOURCE", contains=("text", "pairs", "classes"))
@dataclass(frozen=True, kw_only=True)
class CsvData(CorpusData):
    """CSV files with a header: two of their columns."""

    name: str = "csv"
    source: str = option("text", "column that is read")
    target: str = option("label", "column that is predicted or written")
    files: Splits = field(default_factory=Splits)


@dataset(source=f"{SEQUENCES}.tfds:SOURCE", contains=("text", "pairs", "classes"))
@dataclass(frozen=True, kw_only=True)
class TfdsData(CorpusData):
    """A dataset of TFDS that has been prepared: two of its features."""

    name: str = "tfds"
    dataset: str = option("ted_hrlr_translate/pt_to_en", "name; a version after a colon")
    source: str = option("en", "feature that is read, a text")
    target: str = option("de", "feature that is predicted or written, a text or a class")
    splits: Splits = field(default_factory=Splits)


@dataset(source="experiments.data.digits:SOURCE", contains=("images",))
@dataclass(frozen=True, kw_only=True)
class DigitsData(RandomData):
    """Images of handwritten digits."""

    name: str = "digits"


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

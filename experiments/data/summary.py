"""Summary: the source is a few short sentences, the target one about the main person.

The main person acts in more sentences than any other; being called or helped is not acting. The
summary is the name of that person and all actions in their order, without repetition, place and
time:

    anna fed the cat ; ben called anna ; anna fed the cat at noon ; anna sang by the river
    anna fed the cat and sang
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from attention.modules.numbers import check_number
from experiments.config.build import option
from experiments.config.parts import SMALLEST_TRAIN, RandomData, Sizes
from experiments.data.source import Source
from experiments.data.tokenizers import SentencePair, Words
from experiments.registry import dataset

PERSONS = ("anna", "ben", "clara", "david", "emma", "frank", "grace", "hugo")
THINGS = {
    "fed": ("the cat", "the dog", "the horse", "the birds"),
    "read": ("a letter", "a book", "the news"),
    "cooked": ("the soup", "some rice", "a fish"),
    "mended": ("the roof", "a chair", "the clock"),
    "painted": ("the wall", "a chair", "a boat"),
    "bought": ("a book", "some bread", "a hat", "a fish"),
    "found": ("a letter", "the cat", "a hat", "the clock"),
}
TO_PERSONS = ("called", "helped", "thanked")
ALONE = ("sang", "slept", "danced")
CIRCUMSTANCES = (
    *("in the garden", "at the market", "by the river", "near the school"),
    *("before breakfast", "at noon", "after work", "in the evening"),
)
CAST, DEEDS = 3, 6  # of a document


def _draw_document(random: Random, shortest: int, longest: int) -> SentencePair:
    """Draw documents until one has a main person with at least two actions."""
    while True:
        cast = random.sample(PERSONS, CAST)
        deeds = [_draw_deed(random, cast) for _ in range(DEEDS)]
        number = random.randint(shortest, longest)
        sentences = [_draw_sentence(random, cast, deeds) for _ in range(number)]
        (person, most), *others = Counter(who for who, _, _ in sentences).most_common()
        told = [*dict.fromkeys(deed for who, deed, _ in sentences if who == person)]
        if len(told) > 1 and all(number < most for _, number in others):
            summary = f"{person} {' , '.join(told[:-1])} and {told[-1]}"
            return SentencePair(" ; ".join(" ".join(filter(None, s)) for s in sentences), summary)


def _draw_deed(random: Random, cast: Sequence[str]) -> str:
    verb = random.choice([*THINGS, *TO_PERSONS, *ALONE])
    objects = THINGS.get(verb, cast if verb in TO_PERSONS else ("",))
    return f"{verb} {random.choice(objects)}".strip()


def _draw_sentence(random: Random, cast: Sequence[str], deeds: Sequence[str]) -> tuple[str, ...]:
    """Draw a person, an action, and a place or time, which may be empty."""
    person = random.choice(cast)
    deed = random.choice([deed for deed in deeds if person not in deed] or ALONE)
    circumstance = random.choice(CIRCUMSTANCES) if random.random() < 0.5 else ""
    return person, deed, circumstance


def load(config: "SummaryData", split: str, _: Path) -> list[SentencePair]:
    """Draw a split."""
    random, number = Random(f"{config.seed} {split}"), getattr(config.sizes, split)
    return [_draw_document(random, config.shortest, config.longest) for _ in range(number)]


@dataclass(frozen=True, kw_only=True)
class SummarySizes(Sizes):
    """Documents of each split."""

    train: int = option(40_000, least=SMALLEST_TRAIN)


@dataset(source=Source(load, text=Words(shared=True)), contains=("text", "pairs"))
@dataclass(frozen=True, kw_only=True)
class SummaryData(RandomData):
    """Documents of a few short sentences, and a summary of one sentence."""

    name: str = "summary"
    shortest: int = option(3, "sentences of the shortest document", least=2)
    longest: int = option(5, "sentences of the longest document")
    sizes: SummarySizes = field(default_factory=SummarySizes)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_number("longest", self.longest, at_least=self.shortest)

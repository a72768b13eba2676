"""Sentences that praise or blame, depending on the scope of negations.

No word alone decides the class: *good* is nearly as frequent in blame as in praise, and *not* is
equally frequent. The class depends on whether the opinion is in the scope of a negation, and on
which clause decides: a negation negates the opinion behind it, up to the end of its clause (a comma
or a conjunction), and a second one restores it; a clause after *although* does not count, and of
the others the last one does, as a clause after *but*:

    although the plot was not bad , nobody says that the film was good      (blame)
"""

import functools
import random
from dataclasses import dataclass, field
from pathlib import Path

from experiments.config.build import as_tree, option
from experiments.config.parts import RandomData, Sizes
from experiments.data.source import Source
from experiments.data.tokenizers import SentencePair
from experiments.registry import dataset

# Share of opinions that are negated. At a half, counts of words would be independent of the class,
# and a model would learn nothing for a long time.
NEGATED = 0.4
# Words from a negation to its opinion: in all splits but "longer", and in "longer".
SCOPES, LONGER_SCOPES = range(1, 12), range(12, 24)
LONGEST = 48  # words of a sentence, in all splits


def _words_by_kind() -> dict[str, list[str]]:
    words: dict[str, list[str]] = {}
    for line in Path(__file__).with_name("sentiment.tsv").read_text("utf-8").splitlines():
        kind, *row = line.replace("\t-", "\t").split("\t")
        words.setdefault(kind, []).extend(row)
    return words


WORDS = _words_by_kind()


@functools.lru_cache(maxsize=1)  # the splits depend on one another
def corpus(seed: int, sizes: "SentimentSizes") -> dict[str, list[SentencePair]]:
    """Generate all splits: one half of each is praise, and no sentence occurs twice.

    Returns:
        The sentences of train, validation and test, and of "longer", where negations are farther
        from their opinions than in the others, in sentences of the same lengths.
    """
    splits: dict[str, list[SentencePair]] = {}
    seen: set[str] = set()
    for split, size in as_tree(sizes).items():
        rng = random.Random(f"{seed} {split}")
        splits[split] = pairs = []
        while len(pairs) < size:
            praises = len(pairs) % 2 == 0
            text = _sentence(rng, praises, LONGER_SCOPES if split == "longer" else SCOPES)
            if text not in seen and len(text.split()) <= LONGEST:
                seen.add(text)
                pairs.append(SentencePair(text, "praise" if praises else "blame"))
    return splits


def _sentence(rng: random.Random, praises: bool, scopes: range) -> str:
    clauses = {
        "SAME": lambda: _opinion(rng, praises, scopes),
        "OTHER": lambda: _opinion(rng, not praises, scopes),
        "NEUTRAL": lambda: _choose(rng, "neutral").format(_marker(rng, rng.random() < 0.5)),
    }
    pattern = _choose(rng, "pattern").split()
    return " ".join(clauses[word]() if word in clauses else word for word in pattern)


def _opinion(rng: random.Random, praises: bool, scopes: range) -> str:
    """Draw a clause that praises or blames, with or without a negation.

    No other word depends on whether it is negated.
    """
    negated = rng.random() < NEGATED
    opinion = _choose(rng, "praise" if praises != negated else "blame")
    markers = {*WORDS["negator"], *WORDS["affirmer"], "no", "nobody", "every", "everybody"}
    while True:
        tokens = f"{_statement(rng, negated)} {opinion}".split()
        distances = [len(tokens) - 1 - i for i, token in enumerate(tokens) if token in markers]
        if all(distance in scopes for distance in distances):
            return " ".join(tokens).replace("_", " ")


def _statement(rng: random.Random, negated: bool) -> str:
    """Draw a clause without its opinion: a statement, a report of one, or both."""
    thing = " ".join(_choose(rng, name) for name in ("determiner", "kind", "thing"))
    if rng.random() < 0.15:
        thing += " " + _choose(rng, "aside").replace(" ", "_")  # counts as one word
    toss = rng.random() < 0.5
    outer, inner = rng.choice(((None, negated), (negated, None), (toss, negated != toss)))
    judge = ""
    if outer is not None:
        judge = f"{_judge(rng, outer)} {_fillers(rng)} {_choose(rng, 'says')} that"
    marker = "" if inner is None else _marker(rng, inner)
    return f"{judge} {thing} was {marker} {_fillers(rng)} {_choose(rng, 'degree')}"


def _judge(rng: random.Random, negated: bool) -> str:
    """Draw a judge: "nobody", "no critic", "our critic never", or their opposites."""
    person = _choose(rng, "person")
    return rng.choice((
        "nobody" if negated else "everybody",
        f"{'no' if negated else 'every'} {person}",
        f"{_choose(rng, 'determiner')} {person} {_marker(rng, negated)}",
    ))  # fmt: skip


def _marker(rng: random.Random, negated: bool) -> str:
    return _choose(rng, "negator" if negated else "affirmer")


def _fillers(rng: random.Random) -> str:
    return " ".join(rng.sample(WORDS["filler"], rng.randrange(5)))


def _choose(rng: random.Random, name: str) -> str:
    return rng.choice(WORDS[name])


@dataclass(frozen=True, kw_only=True)
class SentimentSizes(Sizes):
    """Sentences of each split."""

    test: int = option(2_000, least=1)
    longer: int = option(1_000, least=1)


def load(config: "SentimentData", split: str, _: Path) -> list[SentencePair]:
    """Return a split."""
    return corpus(config.seed, config.sizes)[split]


@dataset(source=Source(load, tests=("test", "longer")), contains=("text", "classes"))
@dataclass(frozen=True, kw_only=True)
class SentimentData(RandomData):
    """Sentences that praise or blame."""

    name: str = "sentiment"
    sizes: SentimentSizes = field(default_factory=SentimentSizes)

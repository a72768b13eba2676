"""Sentences that praise or blame, depending on the scope of negations.

No word alone decides the class: *good* is nearly as frequent in blame as in praise, and *not* is
equally frequent. The class depends on whether the opinion is in the scope of a negation, and on
which clause decides.
"""

import functools
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from experiments.config.build import as_tree, option
from experiments.config.data import RandomData, Sizes
from experiments.data.examples import SentencePair
from experiments.data.source import Source
from experiments.registry import dataset

PRAISE = (
    "good", "great", "wonderful", "charming", "clever", "funny", "moving", "brilliant", "lovely",
    "superb", "fresh", "elegant", "delightful", "gripping",
)  # fmt: skip
BLAME = (
    "bad", "awful", "boring", "dull", "stupid", "terrible", "weak", "ugly", "empty", "silly",
    "poor", "horrible", "shallow", "tedious",
)  # fmt: skip
# Words that negate an opinion, and words in the same places that do not.
NEGATORS = ("not", "never", "no", "nobody", "hardly")
AFFIRMERS = ("still", "always", "every", "everybody", "clearly")
BORDERS = (",", "and", "but", "because", "although")

THINGS = (
    "film", "story", "music", "ending", "book", "play", "song", "dance", "novel", "picture", "plot",
    "scene", "show", "opera", "poem", "speech",
)  # fmt: skip
PEOPLE = (
    "critic", "child", "teacher", "student", "friend", "neighbour", "visitor", "reader", "guest",
    "sister",
)  # fmt: skip
DETERMINERS = ("the", "this", "that", "our", "their")
KINDS = (
    "long", "short", "old", "new", "famous", "quiet", "loud", "early", "late", "small", "French",
    "modern",
)  # fmt: skip
DEGREES = ("very", "really", "so", "quite", "truly", "particularly")
SAYS = ("thinks", "says", "believes", "feels")
FILLERS = (
    "last night", "in the summer", "on the first evening", "in my view", "to my surprise",
    "for a moment", "at the theatre", "after the break", "with all respect", "once again",
    "from the start", "in the end", "like last year",
)  # fmt: skip
ASIDES = (
    ", which we never finished ,", ", which I hardly understood ,", ", which is not forgotten ,",
    ", which we always wanted ,", ", which I clearly remember ,", ", which is still around ,",
)  # fmt: skip
NEUTRAL = (
    "we were {} late", "it was {} raining", "the theatre was {} full", "I was {} alone",
    "they were {} ready", "the children were {} asleep", "the seats were {} cheap",
)  # fmt: skip
# Patterns of clauses: SAME has the opinion of the sentence, OTHER the opposite, NEUTRAL none.
PATTERNS = (
    "SAME", "SAME", "SAME and SAME", "NEUTRAL and SAME", "NEUTRAL , and SAME",
    "SAME because NEUTRAL", "although NEUTRAL , SAME", "OTHER but SAME", "OTHER , but SAME",
    "although OTHER , SAME", "SAME although OTHER", "NEUTRAL , OTHER but SAME",
    "OTHER but SAME because NEUTRAL",
)  # fmt: skip

# Share of opinions that are negated. At a half, counts of words would be independent of the class,
# and a model would learn nothing for a long time.
TURNED = 0.4
# Words from a negation to its opinion: in all splits but "longer", and in "longer".
SCOPES, LONGER_SCOPES = range(1, 12), range(12, 24)
LONGEST = 48  # words of a sentence, in all splits


class Judgement(NamedTuple):
    """A sentence and its class.

    Attributes:
        text: words and commas, separated by spaces.
        positive: whether it praises.
    """

    text: str
    positive: bool


def praises(text: str) -> bool:
    """Return whether a sentence praises, by the rule that defines every label.

    A negation negates the opinion behind it, up to the end of its clause: a comma or a conjunction.
    A second one restores it. Asides (", which ... ,") are ignored. A clause after *although* does
    not count; of the others the last one does, as a clause after *but*.

    Raises:
        ValueError: a sentence without an opinion that counts.

    >>> praises("although the plot was not bad , nobody says that the film was good")
    False
    """
    verdict, turned, conceded = None, False, False
    for word in re.sub(", which [^,]* ,", "", text).split():
        if word in BORDERS:
            turned, conceded = False, word == "although"
        elif word in NEGATORS:
            turned = not turned
        elif word in (*PRAISE, *BLAME) and not conceded:
            verdict = (word in PRAISE) != turned
    if verdict is None:
        raise ValueError(f"no opinion counts in {text!r}")
    return verdict


def corpus(seed: int = 0, sizes: "SentimentSizes | None" = None) -> dict[str, list[Judgement]]:
    """Generate all splits: one half of each is praise, and no sentence occurs twice.

    Args:
        seed: equal seeds give equal sentences.
        sizes: number of sentences of each split.

    Returns:
        The sentences of train, validation and test, and of "longer", where negations are farther
        from their opinions than in the others, in sentences of the same lengths.
    """
    splits: dict[str, list[Judgement]] = {}
    seen: set[str] = set()
    for split, size in as_tree(sizes or SentimentSizes()).items():
        rng = random.Random(f"{seed} {split}")
        splits[split] = judgements = []
        while len(judgements) < size:
            positive = len(judgements) % 2 == 0
            text = _sentence(rng, positive, LONGER_SCOPES if split == "longer" else SCOPES)
            if text not in seen and len(text.split()) <= LONGEST:
                seen.add(text)
                judgements.append(Judgement(text, positive))
    return splits


def _sentence(rng: random.Random, positive: bool, scopes: range) -> str:
    clauses = {
        "SAME": lambda: _opinion(rng, positive, scopes),
        "OTHER": lambda: _opinion(rng, not positive, scopes),
        "NEUTRAL": lambda: rng.choice(NEUTRAL).format(_marker(rng, _toss(rng))),
    }
    pattern = rng.choice(PATTERNS).split()
    return " ".join(clauses[word]() if word in clauses else word for word in pattern)


def _opinion(rng: random.Random, positive: bool, scopes: range) -> str:
    """Draw a clause that praises or blames, with or without a negation.

    No other word depends on whether it is negated.
    """
    turned = rng.random() < TURNED
    opinion = rng.choice(PRAISE if positive != turned else BLAME)
    while True:
        words = f"{_statement(rng, turned)} {opinion}".split()
        places = [i for i, word in enumerate(words) if word in (*NEGATORS, *AFFIRMERS)]
        if all(len(words) - 1 - place in scopes for place in places):
            return " ".join(words).replace("_", " ")


def _statement(rng: random.Random, turned: bool) -> str:
    """Draw a clause without its opinion: a statement, a report of one, or both."""

    def fillers() -> str:
        return " ".join(rng.sample(FILLERS, rng.randrange(5)))

    thing = " ".join(rng.choice(words) for words in (DETERMINERS, (*KINDS, "", ""), THINGS))
    thing += f" {rng.choice(ASIDES).replace(' ', '_') if rng.random() < 0.15 else ''}"
    toss = _toss(rng)
    outer, inner = rng.choice(((None, turned), (turned, None), (toss, turned != toss)))
    judge = "" if outer is None else f"{_judge(rng, outer)} {fillers()} {rng.choice(SAYS)} that"
    marker = "" if inner is None else _marker(rng, inner)
    return f"{judge} {thing} was {marker} {fillers()} {rng.choice((*DEGREES, ''))}"


def _judge(rng: random.Random, negative: bool) -> str:
    """Draw a judge: "nobody", "no critic", "our critic never", or their opposites."""
    person = rng.choice(PEOPLE)
    return rng.choice((
        "nobody" if negative else "everybody",
        f"{'no' if negative else 'every'} {person}",
        f"{rng.choice(DETERMINERS)} {person} {_marker(rng, negative)}",
    ))  # fmt: skip


def _marker(rng: random.Random, negative: bool) -> str:
    return rng.choice(("not", "never", "hardly") if negative else ("still", "always", "clearly"))


def _toss(rng: random.Random) -> bool:
    return rng.random() < 0.5


_corpus = functools.lru_cache(maxsize=1)(corpus)  # the splits depend on one another


def load(config: "SentimentData", split: str, cache: Path) -> list[SentencePair]:
    """Return a split: sentences and the names of their classes."""
    del cache
    judgements = _corpus(config.seed, config.sizes)[split]
    return [SentencePair(one.text, "praise" if one.positive else "blame") for one in judgements]


SOURCE = Source(load, tests=("test", "longer"))


@dataclass(frozen=True, kw_only=True)
class SentimentSizes(Sizes):
    """Sentences of each split."""

    test: int = option(2_000, least=1)
    longer: int = option(1_000, least=1)


@dataset(source=SOURCE, contains=("text", "classes"))
@dataclass(frozen=True, kw_only=True)
class SentimentData(RandomData):
    """Sentences that praise or blame."""

    name: str = "sentiment"
    sizes: SentimentSizes = field(default_factory=SentimentSizes)

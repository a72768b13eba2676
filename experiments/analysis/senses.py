"""How well vectors of words tell their senses apart: the bank of a river from that of a banker.

A static vector knows the word and not the sentence, so it can do no better than the commonest
sense. What a contextual vector finds beyond that, and beyond the static vectors of the words
around, is what attention has brought to the word.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from experiments.data.pairs import SentencePair
from experiments.data.toy_language.entries import SENSES
from experiments.data.toy_language.morphology import english_plural, french_plural
from experiments.data.words import tokenize
from experiments.errors import UsageError

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline


class Occurrence(NamedTuple):
    """A word of several senses, somewhere.

    Attributes:
        sentence: the number of its sentence.
        place: of the word among the tokens of the sentence.
        word: the word, in the singular.
        sense: its French translation, in the singular.
    """

    sentence: int
    place: int
    word: str
    sense: str


class SenseVectors(NamedTuple):
    """Occurrences of words and a vector of each.

    Attributes:
        words: `[M]` strings.
        senses: `[M]` strings.
        vectors: `[M, D]`.
    """

    words: np.ndarray
    senses: np.ndarray
    vectors: np.ndarray

    @classmethod
    def of(cls, found: Sequence[Occurrence], vectors: Sequence[np.ndarray]) -> "SenseVectors":
        """Occurrences and the vector `[D]` of each."""
        words, senses = ([getattr(one, name) for one in found] for name in ("word", "sense"))
        return cls(np.array(words), np.array(senses), np.stack(vectors))


def occurrences(pairs: Iterable[SentencePair]) -> list[Occurrence]:
    """Every English word of several senses; the French word aligned to it says in which."""
    found = []
    for number, pair in enumerate(pairs):
        english, french = tokenize(pair.source), tokenize(pair.target)
        for source, target in pair.alignment:
            sense = _SENSE_OF.get((english[source], french[target]))
            if sense is not None:
                found.append(Occurrence(number, source, *sense))
    return found


def check_senses(train: Iterable[SentencePair], test: Iterable[SentencePair]) -> None:
    """Checks that there are senses to be told apart, and words to learn them from.

    Raises:
        UsageError: too few sentences.
    """
    learned, asked = ({one.word for one in occurrences(pairs)} for pairs in (train, test))
    if not asked:
        raise UsageError("no word of several senses is in the test split: raise data.sizes.test")
    if not asked <= learned:
        raise UsageError(
            f"no occurrence of {', '.join(sorted(asked - learned))} to learn senses from: raise "
            "data.sizes.train"
        )


_SENSE_OF = {
    (english, french): (noun.english, noun.french)
    for noun in SENSES
    for english, french in (
        (noun.english, noun.french),
        (english_plural(noun.english), french_plural(noun.french)),
    )
}


def neighbour_mean(vectors: np.ndarray, place: int, window: int) -> np.ndarray:
    """The mean `[D]` of the vectors at most `window` places away, without that of the place itself.

    Args:
        vectors: static vectors of a sentence, `[T, D]`.
        place: of the word.
        window: places on either side.
    """
    start = max(0, place - window)
    around = np.concatenate([vectors[start:place], vectors[place + 1 : place + window + 1]])
    return around.mean(axis=0) if len(around) else np.zeros_like(vectors[place])


def sense_accuracy(train: SenseVectors, test: SenseVectors) -> dict[str, float]:
    """How often a linear probe, one for each word, finds the sense from the vector.

    Args:
        train: what the probes learn from.
        test: what they are tried on.

    Returns:
        accuracy over the occurrences of test; majority, that of the commonest sense of each word
        in train.

    Raises:
        ValueError: a word of test that train does not know.
    """
    unknown = sorted(set(test.words.tolist()) - set(train.words.tolist()))
    if unknown:
        raise ValueError(f"no occurrence of {', '.join(unknown)} to learn its senses from")
    right = commonest = 0
    for word in sorted(set(test.words.tolist())):
        known, asked = (train.words == word), (test.words == word)
        senses, counts = np.unique(train.senses[known], return_counts=True)
        majority = senses[counts.argmax()]
        guesses = majority
        if len(senses) > 1:
            probe = _probe().fit(train.vectors[known], train.senses[known])
            guesses = probe.predict(test.vectors[asked])
        right += np.sum(test.senses[asked] == guesses)
        commonest += np.sum(test.senses[asked] == majority)
    number = len(test.words)
    return {"accuracy": float(right / number), "majority": float(commonest / number)}


def _probe() -> "Pipeline":
    """Scaled, so that vectors of any size are regularised alike."""
    # A second that no other experiment should wait.
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))

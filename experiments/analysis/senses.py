"""Accuracy of linear probes that predict the sense of a word, such as *bank*, from its vector.

A static vector is the same in every sentence, so it reaches at most the share of the most frequent
sense. The gain of contextual vectors over it, and over the static vectors of the words around, is
the information that attention adds.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from experiments.data.examples import SentencePair
from experiments.data.tokenizers import tokenize
from experiments.data.toy_language.lexicon import SENSES, english_plural, french_plural
from experiments.errors import UsageError

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline


TINY = 1e-30  # in place of a norm of 0


class Occurrence(NamedTuple):
    """An occurrence of a word with several senses.

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
    """Occurrences of words, with the vector of each.

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
        """Convert occurrences and the vector `[D]` of each to arrays."""
        words, senses = ([getattr(one, name) for one in found] for name in ("word", "sense"))
        return cls(np.array(words), np.array(senses), np.stack(vectors))


def cosine_distances(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return 1 - cosine of the vectors of two arrays `[..., D]`: `[...]`."""
    before, after = before.astype(np.float64), after.astype(np.float64)
    norms = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
    return 1 - (before * after).sum(axis=-1) / np.maximum(norms, TINY)


def occurrences(pairs: Iterable[SentencePair]) -> list[Occurrence]:
    """List the English words with several senses; the aligned French word determines the sense."""
    found = []
    for number, pair in enumerate(pairs):
        english, french = tokenize(pair.source), tokenize(pair.target)
        for source, target in pair.alignment:
            sense = _SENSE_OF.get((english[source], french[target]))
            if sense is not None:
                found.append(Occurrence(number, source, *sense))
    return found


def check_senses(train: Iterable[SentencePair], test: Iterable[SentencePair]) -> None:
    """Check that test contains words with several senses, and train the same words.

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
    """Return the mean `[D]` of the vectors at most `window` positions away, without the word.

    Args:
        vectors: static vectors of a sentence, `[T, D]`.
        place: of the word.
        window: positions on either side.
    """
    start = max(0, place - window)
    around = np.concatenate([vectors[start:place], vectors[place + 1 : place + window + 1]])
    return around.mean(axis=0) if len(around) else np.zeros_like(vectors[place])


def sense_accuracy(train: SenseVectors, test: SenseVectors) -> dict[str, float]:
    """Return the accuracy of linear probes, one for each word, that predict the sense.

    Args:
        train: training data of the probes.
        test: test data of the probes.

    Returns:
        accuracy over the occurrences of test; majority, that of the most frequent sense of each
        word in train.

    Raises:
        ValueError: a word of test that is not in train.
    """
    unknown = sorted(set(test.words.tolist()) - set(train.words.tolist()))
    if unknown:
        raise ValueError(f"no occurrence of {', '.join(unknown)} to learn its senses from")
    right = most_frequent = 0
    for word in sorted(set(test.words.tolist())):
        known, asked = (train.words == word), (test.words == word)
        senses, counts = np.unique(train.senses[known], return_counts=True)
        majority = senses[counts.argmax()]
        guesses = majority
        if len(senses) > 1:
            probe = _probe().fit(train.vectors[known], train.senses[known])
            guesses = probe.predict(test.vectors[asked])
        right += np.sum(test.senses[asked] == guesses)
        most_frequent += np.sum(test.senses[asked] == majority)
    number = len(test.words)
    return {"accuracy": float(right / number), "majority": float(most_frequent / number)}


def _probe() -> "Pipeline":
    """Return logistic regression on scaled vectors, so that regularisation ignores their norms."""
    # This import takes a second.
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))

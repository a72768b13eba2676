"""Accuracy of linear probes that predict the sense of a word, such as *bank*, from its vector.

A static vector is the same in every sentence, so it reaches at most the share of the most frequent
sense. The gain of contextual vectors over it, and over the static vectors of the words around, is
the information that attention adds.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from experiments.data.tokenizers import SentencePair
from experiments.data.toy_language.phenomena import Occurrence, occurrences
from experiments.errors import UsageError


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
    def of(cls, words: Sequence[Occurrence], vectors: Sequence[np.ndarray]) -> "SenseVectors":
        """Convert occurrences and the vector `[D]` of each to arrays."""
        senses = np.array([occurrence.sense for occurrence in words])
        return cls(np.array([occurrence.word for occurrence in words]), senses, np.stack(vectors))


def check_senses(train: Iterable[SentencePair], test: Iterable[SentencePair]) -> None:
    """Check that test contains words with several senses, and train the same words.

    Raises:
        UsageError: too few sentences.
    """
    learned, tested = ({word.word for word in occurrences(pairs)} for pairs in (train, test))
    if not tested:
        raise UsageError("no word of several senses is in the test split: raise data.sizes.test")
    if not tested <= learned:
        raise UsageError(
            f"no occurrence of {', '.join(sorted(tested - learned))} to learn senses from: raise "
            "data.sizes.train"
        )


def neighbour_mean(vectors: np.ndarray, place: int, window: int) -> np.ndarray:
    """Return the mean `[D]` of the vectors at most `window` positions away, without the word.

    Args:
        vectors: static vectors of a sentence, `[T, D]`.
        place: index of the word.
        window: positions on either side.
    """
    start = max(0, place - window)
    around = np.concatenate([vectors[start:place], vectors[place + 1 : place + window + 1]])
    return around.mean(axis=0) if len(around) else np.zeros_like(vectors[place])


def sense_accuracy(train: SenseVectors, test: SenseVectors) -> dict[str, float]:
    """Return the accuracy of linear probes, one for each word, that predict the sense.

    Vectors are scaled, so that the regularisation of the logistic regression ignores their norms.

    Args:
        train: training data of the probes, with every word of test: see `check_senses`.
        test: test data of the probes.

    Returns:
        accuracy over the occurrences of test; majority, that of the most frequent sense of each
        word in train.
    """
    # This import takes a second.
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    correct = most_frequent = 0
    for word in np.unique(test.words):
        learned, tested = train.words == word, test.words == word
        senses, counts = np.unique(train.senses[learned], return_counts=True)
        predicted = majority = senses[counts.argmax()]
        if len(senses) > 1:
            probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))
            probe.fit(train.vectors[learned], train.senses[learned])
            predicted = probe.predict(test.vectors[tested])
        correct += np.sum(test.senses[tested] == predicted)
        most_frequent += np.sum(test.senses[tested] == majority)
    number = len(test.words)
    return {"accuracy": float(correct / number), "majority": float(most_frequent / number)}

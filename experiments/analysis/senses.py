"""Accuracy of linear probes that predict the sense of a word, such as *bank*, from its vector.

A static vector is the same in every sentence, so it reaches at most the share of the most frequent
sense. The gain of contextual vectors over it, and over the static vectors of the words around, is
the information that attention adds.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from experiments.data.tokenizers import SentencePair
from experiments.data.toy_language.phenomena import occurrences


class SenseVectors(NamedTuple):
    """Occurrences of words, with the vector of each."""

    words: np.ndarray  # `[M]` strings
    senses: np.ndarray  # `[M]` strings
    vectors: np.ndarray  # `[M, D]`


def neighbour_mean(vectors: np.ndarray, place: int, window: int) -> np.ndarray:
    """Return the mean `[D]` of the vectors at most `window` positions from the word at `place`.

    Those of the sentence are `[T, D]`; that of the word itself is left out.
    """
    start = max(0, place - window)
    around = np.concatenate([vectors[start:place], vectors[place + 1 : place + window + 1]])
    return around.mean(axis=0) if len(around) else np.zeros_like(vectors[place])


def sense_scores(
    examples: Callable[[str], Sequence[SentencePair]],
    encode: Callable[[str, Sequence[int]], Iterable[np.ndarray]],
) -> dict[str, float]:
    """Return `sense_accuracy` of probes that learn from "train" and are measured on "test".

    Args:
        examples: split -> its sentences.
        encode: split, numbers of sentences -> for each the vectors of its words `[T, D]`.
    """
    parts = []
    for split in ("train", "test"):
        words = occurrences(examples(split))
        numbers = sorted({word.sentence for word in words})
        features = dict(zip(numbers, encode(split, numbers), strict=True))
        vectors = [features[word.sentence][word.place] for word in words]
        of_words = (np.array([getattr(word, name) for word in words]) for name in ("word", "sense"))
        parts.append(SenseVectors(*of_words, np.array(vectors)))
    return sense_accuracy(*parts)


def sense_accuracy(train: SenseVectors, test: SenseVectors) -> dict[str, float]:
    """Return the accuracy of linear probes, one for each word, that predict the sense.

    Vectors are scaled, so that the regularisation of the logistic regression ignores their norms.

    Returns:
        accuracy over the occurrences in test of words in train; majority, that of the most frequent
        sense of each word in train; {} without such words.
    """
    # This import takes a second.
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    correct = most_frequent = number = 0
    for word in np.intersect1d(test.words, train.words):
        learned, tested = train.words == word, test.words == word
        senses, counts = np.unique(train.senses[learned], return_counts=True)
        predicted = majority = senses[counts.argmax()]
        if len(senses) > 1:
            probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))
            probe.fit(train.vectors[learned], train.senses[learned])
            predicted = probe.predict(test.vectors[tested])
        correct += np.sum(test.senses[tested] == predicted)
        most_frequent += np.sum(test.senses[tested] == majority)
        number += np.sum(tested)
    if not number:
        return {}
    return {"accuracy": float(correct / number), "majority": float(most_frequent / number)}

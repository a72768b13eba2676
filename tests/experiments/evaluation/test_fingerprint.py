import numpy as np

from experiments.data.pairs import SentencePair
from experiments.evaluation.fingerprint import of_batches, of_pairs


def test_a_fingerprint_is_that_of_both_sides():
    pairs = [SentencePair("a", "b"), SentencePair("c", "d")]
    others = [[*pairs, pairs[0]], pairs[::-1], [SentencePair("a", "x"), pairs[1]]]
    others += [[SentencePair("x", "b"), pairs[1]]]
    assert len({of_pairs(pairs), *map(of_pairs, others)}) == 5
    assert of_pairs([SentencePair("a", "b"), SentencePair("c", "d")]) == of_pairs(pairs)


def test_a_fingerprint_is_that_of_every_id():
    batches = [{"labels": np.arange(6)}, {"labels": np.arange(3)}]
    other = [batches[0], {"labels": np.array([0, 1, 3])}]
    assert of_batches(batches) == of_batches([{"labels": np.arange(n)} for n in (6, 3)])
    assert of_batches(batches) != of_batches(other)

"""Measures of heads, and of word senses from constructed vectors with known answers."""

import numpy as np
import pytest

from experiments.analysis.collect import Attended, AttentionMaps, Example
from experiments.analysis.heads import head_statistics, heads_table, repeated_block
from experiments.analysis.senses import SenseVectors, neighbour_mean, sense_accuracy


def maps(weights):
    labels = ["a"] * weights.shape[-1]
    return AttentionMaps("encoder", range(1, len(weights) + 1), weights, labels, labels)


@pytest.mark.parametrize(("name", "shift"), [("previous", -1), ("same", 0), ("next", 1)])
def test_heads_of_one_position(name, shift):
    # The rows without such a key attend elsewhere, and are not counted.
    scores = head_statistics(np.eye(5)[(np.arange(5) + shift) % 5])
    assert np.nanmean(scores[name]) == 1 and (scores["entropy"] == 0).all()
    uniform = head_statistics(np.full((4, 4), 0.25))
    assert np.nanmean(uniform[name]) == np.nanmean(uniform["first"]) == 0.25
    assert np.mean(uniform["distance"]) == pytest.approx((6 + 4 + 4 + 6) / 16)


def test_table_has_means_of_all_queries_and_the_induction_score():
    examples = [
        Example({"encoder": np.array([7, 8, 9, 2])}, {"encoder": [*"abc$"]}, {"encoder": (0, 1)})
    ]
    block = repeated_block(examples, longest=6)
    first, second, end = np.split(block.inputs["encoder"], [2, 4])
    np.testing.assert_array_equal(first, second)
    assert {*first.tolist()} < {7, 8, 9} and end.tolist() == [2]
    repeated = np.zeros((1, 2, 5, 5))
    repeated[0, 1, [2, 3], [1, 2]] = 1  # the tokens after the earlier copies of 2 and 3
    weights = np.stack([[np.full((2, 2), 0.5), np.eye(2)]])  # one layer, two heads
    more = np.stack([[np.full((4, 4), 0.25), np.eye(4)]])
    passes = [Attended({"encoder": maps(values)}) for values in (weights, more)]
    rows = heads_table(passes, block, Attended({"encoder": maps(repeated)}))
    assert [row["entropy"] for row in rows] == [(2 * 1 + 4 * 2) / 6, 0]
    assert [row["induction"] for row in rows] == [0, 1]


@pytest.mark.parametrize(
    ("ids", "special"), [(np.array([1]), (1, 0)), (np.zeros((4, 4, 1)), (0, 0))]
)
def test_no_block_of_no_tokens_or_images(ids, special):
    example = Example({"encoder": ids}, {"encoder": ["<bos>"]}, {"encoder": special})
    assert repeated_block([example], longest=None) is None
    (row,) = heads_table([Attended({"encoder": maps(np.ones((1, 1, 1, 1)))})])
    assert row["previous"] == row["induction"] == "" and row["same"] == 1


def test_neighbours_by_hand():
    vectors = np.array([[1.0], [2], [4], [8], [16]])
    assert neighbour_mean(vectors, 2, 1) == pytest.approx((2 + 8) / 2)
    assert neighbour_mean(vectors, 0, 2) == pytest.approx((2 + 4) / 2)
    assert neighbour_mean(vectors, 4, 9) == pytest.approx((1 + 2 + 4 + 8) / 4)
    assert neighbour_mean(vectors[:1], 0, 3) == 0


def test_vectors_with_a_sense_direction_predict_every_sense():
    """A sense of 1/4 of "bank" and half of "bat", in another small component beside noise."""
    random = np.random.default_rng(0)

    def constructed(number):
        words, turns = np.array(["bank", "bat"] * (number // 2)), np.arange(number) // 2 % 4
        sides = np.where(turns % np.where(words == "bank", 4, 2) == 0, 1, -1)
        vectors = random.normal(size=(number, 7))
        for word, component, scale in (("bank", 3, 0.01), ("bat", 5, -0.01)):
            vectors[words == word, component] = scale * sides[words == word]
        return SenseVectors(words, np.char.add(words, sides.astype(str)), vectors)

    scores = sense_accuracy(constructed(400), constructed(80))
    assert scores == {"accuracy": 1, "majority": pytest.approx(5 / 8)}

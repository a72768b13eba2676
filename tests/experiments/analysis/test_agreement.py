import numpy as np
import pytest

from experiments.analysis.agreement import (
    METHODS,
    RANDOM,
    agreement_table,
    deletion_curves,
    fits,
    linked_first,
)
from experiments.analysis.collect import Example

# Two sentences: rows are the target words and the end, columns the source words and the end.
FIRST = np.array([[0.9, 0.1, 0.0], [0.2, 0.3, 0.9], [0.0, 0.0, 1.0]])
SECOND = np.array([[0.1, 0.8, 0.1, 0.9], [0.0, 0.0, 0.0, 1.0]])
ALIGNMENTS = [[(0, 0), (0, 1)], [(1, 0), (2, 0)]]


@pytest.fixture
def found():
    maps = [dict.fromkeys((*METHODS, "cross-attention"), each) for each in (FIRST, SECOND)]
    drops = [np.array([[0.0, 1]] * 3), np.array([[2.0, 3]] * 1)]  # with 1 and 2 words less
    return [
        (each, dict.fromkeys((*each, RANDOM), drop)) for each, drop in zip(maps, drops, strict=True)
    ]


def test_linked_word_is_first(found):
    shares = linked_first(found, ALIGNMENTS)
    assert shares["cross-attention"] == pytest.approx(2 / 3)  # not the second word of the first
    assert shares[RANDOM] == pytest.approx((1 / 2 + 1 / 2 + 2 / 3) / 3)
    assert linked_first(found, [[], [(1, 0)]])["cross-attention"] == 1


def test_table_has_a_row_for_each_map(found):
    *rows, random = agreement_table(found, ALIGNMENTS)
    assert [row["map"] for row in rows] == [*METHODS, "cross-attention"]
    for row in rows:
        assert row[f"rank correlation with {METHODS[0]}"] == pytest.approx(1)
        assert row["linked word first, %"] == pytest.approx(200 / 3)
    assert random["map"] == RANDOM and random["drop by deletion, nats"] == (3 * 0.5 + 2.5) / 4


def test_curve_is_a_mean_over_target_tokens(found):
    curves = deletion_curves(found)
    assert [*curves] == [*METHODS, "cross-attention", RANDOM]
    np.testing.assert_allclose(curves[RANDOM], [2 / 4, (3 + 3) / 4])


def test_sentences_without_links(found):
    assert linked_first(found, [[], []]) == {}
    assert {"map", "drop by deletion, nats"} < {*agreement_table(found, [[], []])[0]}


@pytest.mark.parametrize(
    ("number", "last", "is_taken"), [(16, "</s>", True), (17, "</s>", False), (16, "b", False)]
)
def test_examples_are_short_and_have_an_end(number, last, is_taken):
    inputs = {"encoder": np.zeros(3), "decoder": np.zeros(number)}
    example = Example(inputs, {}, {}, ["a"] * (number - 1) + [last])
    assert fits(example, "</s>") is is_taken

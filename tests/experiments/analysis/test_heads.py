import numpy as np
import pytest

from experiments.analysis.collect import Attended, AttentionMaps, Example
from experiments.analysis.heads import (
    beside,
    changes,
    head_statistics,
    heads_table,
    induction_score,
    repeated_block,
    visible,
)


def means(weights):
    return {name: sums[..., 0] / sums[..., 1] for name, sums in head_statistics(weights).items()}


def maps(weights, kind="encoder"):
    labels = ["a"] * weights.shape[-1]
    return AttentionMaps(kind, range(1, len(weights) + 1), weights, labels, labels)


def test_uniform_head():
    found = means(np.full((4, 4), 0.25))
    assert found["entropy"] == pytest.approx(2)
    assert found["distance"] == pytest.approx((6 + 4 + 4 + 6) / 16)
    for name in ("first", "previous", "same", "next"):
        assert found[name] == pytest.approx(0.25)
    assert found["diagonal"] == pytest.approx((0.5 + 0.75 + 0.75 + 0.5) / 4)


@pytest.mark.parametrize(("name", "shift"), [("previous", -1), ("same", 0), ("next", 1)])
def test_heads_of_one_place(name, shift):
    # The rows without such a key attend elsewhere, and are not counted.
    weights = np.eye(5)[(np.arange(5) + shift) % 5]
    found = means(weights)
    assert found[name] == pytest.approx(1)
    assert found["entropy"] == 0


def test_head_of_the_first_key():
    weights = np.zeros((3, 2))
    weights[:, 0] = 1
    assert means(weights)["first"] == 1


def test_diagonal_of_a_wide_map():
    weights = np.zeros((3, 5))
    weights[[0, 1, 2], [0, 2, 4]] = 1
    assert means(weights)["diagonal"] == 1


def test_induction():
    # Places 1 to 3 are copied at 4 to 6; place 4 should attend to 2, 5 to 3, and 6 to 4.
    weights = np.zeros((7, 7))
    weights[[4, 5], [2, 3]] = 1
    assert induction_score(weights, start=1, block=3) == pytest.approx(2 / 3)


def test_repeated_block():
    examples = [
        Example(
            {"encoder": np.array([7, 8, 9, 2]), "decoder": np.array([1, 5, 6])},
            {"encoder": list("abc$"), "decoder": list("^ab")},
            {"encoder": (0, 1), "decoder": (1, 0)},
            list("ab$"),
        )
    ]
    block = repeated_block(examples, longest=48)
    assert block.size == 2 and block.starts == {"encoder": 0, "decoder": 1}
    first, second, end = np.split(block.example.inputs["encoder"], [2, 4])
    np.testing.assert_array_equal(first, second)
    assert {*first.tolist()} < {7, 8, 9} and end.tolist() == [2]
    assert sorted(block.example.inputs["decoder"].tolist()) == [1, 5, 5, 6, 6]
    assert len(block.example.labels["decoder"]) == len(block.example.inputs["decoder"])


def test_no_block_of_no_tokens():
    labels, special = {"decoder": ["<bos>"]}, {"decoder": (1, 0)}  # each translation is empty
    assert repeated_block([Example({"decoder": np.array([1])}, labels, special)], None) is None


def test_changes_of_each_head():
    one, other = np.eye(2)[[[[0, 1], [0, 0]]]], np.eye(2)[[[[0, 1], [1, 0]]]]  # [1, 2, 2, 2]
    found = changes(*([Attended({"encoder": maps(each)})] * 2 for each in (one, other)))
    np.testing.assert_array_equal(found["encoder self-attention"], [[0, 0.5]])


def test_no_block_of_images():
    image = Example({"encoder": np.zeros((4, 4, 1))}, {"encoder": ["1,1"]}, {"encoder": (0, 0)})
    assert repeated_block([image], longest=16) is None


def test_table_is_sorted_and_has_means_of_all_queries():
    weights = np.stack([[np.full((2, 2), 0.5), np.eye(2)]])  # one layer, two heads
    more = np.stack([[np.full((4, 4), 0.25), np.eye(4)]])
    rows = heads_table([Attended({"encoder": maps(each)}, {}) for each in (weights, more)])
    assert [(row["head"], row["entropy"]) for row in rows] == [(2, 0), (1, (2 * 1 + 4 * 2) / 6)]


def test_untrained_model_beside():
    rows = heads_table([Attended({"encoder": maps(np.eye(3)[None, None])}, {})])
    others = heads_table([Attended({"encoder": maps(np.full((1, 1, 3, 3), 1 / 3))}, {})])
    (row,) = beside(rows, others)
    assert row["same"] == 1 and row["same untrained"] == pytest.approx(1 / 3)


def test_mask_is_where_an_untrained_model_attends():
    causal = np.tril(np.full((3, 3), 0.3))
    np.testing.assert_array_equal(visible(maps(causal[None, None]), 0), np.tril(np.ones((3, 3))))

import numpy as np
import pytest

from experiments.analysis.contextual_senses import (
    SenseUses,
    accuracy,
    draw_senses,
    frequent,
    nearest_senses,
    principal_components,
    senses_table,
    words_table,
)
from experiments.analysis.senses import Occurrence

RANDOM = np.random.default_rng(0)


def test_nearest_other_use_decides():
    vectors = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1], [1, 0.2]])
    senses = np.array(["a", "a", "b", "b", "b"])  # the last one is among the wrong ones
    assert nearest_senses(vectors, senses).tolist() == ["a", "b", "b", "b", "a"]


def test_static_vectors_find_the_most_frequent_sense():
    senses = np.array(["a"] * 7 + ["b"] * 5)
    assert nearest_senses(np.ones((12, 3)), senses).tolist() == ["a"] * 12


def test_words_that_are_used_often_in_several_senses():
    found = [Occurrence(n, 0, "bank", "banque" if n % 2 else "rive") for n in range(4)]
    rare = [Occurrence(n, 0, "bat", "batte" if n else "chauve-souris") for n in range(2)]
    one = [Occurrence(n, 0, "pen", "stylo") for n in range(4)]
    assert frequent([*found, *rare, *one], fewest=4) == found


@pytest.fixture
def uses():
    """Return 20 uses of "bank", three quarters of them "banque", and vectors of four kinds."""
    found = [Occurrence(n, 0, "bank", "banque" if n % 4 else "rive") for n in range(20)]
    side = np.array([[one.sense == "rive"] for one in found]) * 9.0
    static = np.ones((20, 3))
    noise = RANDOM.normal(size=(20, 3))
    layer = noise / 9 + side * [1, 0, 0] + [0, 5, 0]
    vectors = {"input embedding": static, "input of layer 1": static, "layer 1": layer}
    return SenseUses(found, 20, vectors | {"encoder output": layer})


def test_accuracy_beside_the_most_frequent_sense(uses):
    static, _, layer, output = senses_table(uses)
    assert static["accuracy"] == static["most frequent sense"] == 75
    assert layer["accuracy"] == output["accuracy"] == 100
    assert static["moved by"] == "" and layer["moved by"] > 0.01


def test_each_word_has_a_row(uses):
    vectors = {name: np.concatenate([each, each]) for name, each in uses.vectors.items()}
    more = [Occurrence(n, 0, "bat", "batte" if n % 2 else "chauve-souris") for n in range(20)]
    bank, bat = words_table(SenseUses([*uses.uses, *more], 30, vectors))
    assert (bank["word"], bank["uses"], bank["uses in train"]) == ("bank", 20, 0)
    assert (bank["most frequent sense"], bank["layer 1"], bat["word"]) == (75, 100, "bat")
    assert (bat["uses"], bat["uses in train"]) == (10, 10)


def test_uses_in_train_are_neighbours_alone():
    asked = [Occurrence(0, 0, "bank", "rive"), Occurrence(1, 0, "bank", "banque")]
    others = [Occurrence(2, 0, "bank", "rive"), Occurrence(3, 0, "bat", "batte")]
    vectors = {"layer 1": np.array([[1, 0], [0.9, 0.5], [1, 0.1], [1, 0]])}
    found = SenseUses(asked + others, 2, vectors)
    assert accuracy(found, "layer 1") == 50  # of 2, not of 4
    assert accuracy(found.held_out, "layer 1") == 0
    (row,) = senses_table(found)
    assert (row["uses"], row["uses in train"], row["held-out neighbours alone"]) == (2, 2, 0)


def test_picture_of_senses(uses, tmp_path):
    draw_senses(uses, tmp_path / "senses")
    svg = (tmp_path / "senses.svg").read_text()
    for text in (">banque</text>", ">rive</text>", "of the variance)</text>"):
        assert text in svg


def test_principal_components_by_hand():
    line = np.outer([-3, -1, 4], [0.6, 0.8]) + 7
    points, shares = principal_components(line)
    np.testing.assert_allclose(points[:, 0], [-3, -1, 4], atol=1e-9)
    np.testing.assert_allclose(shares, [1, 0], atol=1e-9)

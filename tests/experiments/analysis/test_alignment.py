import numpy as np
import pytest

from experiments.analysis.alignment import (
    Gold,
    as_pharaoh,
    balanced,
    diagonal_links,
    link_words,
    read_links,
    score,
    uniform_links,
    word_weights,
)
from experiments.errors import UsageError


def links(text):
    return frozenset(tuple(map(int, link.split("-"))) for link in text.split())


def test_scores_of_one_sentence():
    # A = 0-0 1-1 2-2, S = 0-0 2-3, P = S + 1-1: A ∩ S is 1 link, A ∩ P is 2.
    gold = [Gold(links("0-0 2-3"), links("0-0 1-1 2-3"))]
    found = score([links("0-0 1-1 2-2")], gold)
    assert found.aer == pytest.approx(1 - (1 + 2) / (3 + 2))
    assert found.precision == pytest.approx(2 / 3)
    assert found.recall == pytest.approx(1 / 2)


def test_counts_are_summed_over_sentences():
    # The mean of the two error rates, 0 and 1, would be 0.5.
    gold = [Gold(links("0-0"), links("0-0")), Gold(links("0-0 1-1 2-2"), links("0-0 1-1 2-2"))]
    found = score([links("0-0"), links("0-1")], gold)
    assert found.aer == pytest.approx(1 - (1 + 1) / (2 + 4))


def test_interval_contains_error():
    gold = [Gold(links("0-0"), links("0-0"))] * 10
    found = score([links("0-0"), links("0-1")] * 5, gold)
    assert found.low < found.aer == 0.5 < found.high
    assert score([links("0-0")] * 10, gold)[-2:] == (0, 0)


def test_no_links():
    empty = Gold(frozenset(), frozenset())
    assert score([frozenset()], [empty])[:3] == (0, 1, 1)
    assert score([frozenset()], [Gold(links("0-0"), links("0-0"))])[:3] == (1, 1, 0)


def test_files_of_links(tmp_path):
    path = tmp_path / "gold"
    path.write_text("0-0 1p2 1?3\n\n2-1\n")
    assert read_links(path) == [
        Gold(links("0-0"), links("0-0 1-2 1-3")),
        Gold(frozenset(), frozenset()),
        Gold(links("2-1"), links("2-1")),
    ]
    path.write_text("1-1 2p3\n")
    assert read_links(path, first=1) == [Gold(links("0-0"), links("0-0 1-2"))]


def test_files_of_numbered_links(tmp_path):
    path = tmp_path / "gold"
    path.write_text("0001 1 1 S\n1 2 3 P\n0003 1 2 S 0.9\n")
    expected = [
        Gold(links("0-0"), links("0-0 1-2")),
        Gold(frozenset(), frozenset()),
        Gold(links("0-1"), links("0-1")),
    ]
    assert read_links(path, first=1) == expected
    lengths = [(2, 3)] * 4  # the last sentence has no link
    assert read_links(path, first=1, lengths=lengths) == [*expected, expected[1]]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("0-0\n", {"lengths": [(1, 1)] * 2}, "has 1 lines, and there are 2 sentences"),
        (
            "0-0 1-2\n",
            {"lengths": [(2, 2)]},
            "line 1: the link 1-2 .* with 2 and 2 words is out of",
        ),
        ("0-1\n", {"first": 1}, "the link 0-1 is out of range, counted from 1"),
        ("1 1 1\n2 1 1\n", {"lengths": [(1, 1)]}, "has 2 lines, and there are 1 sentences"),
        ("0:1\n", {}, "line 1: a link is 0-1, 0p1 or 0.1, got '0:1'"),
    ],
)
def test_faults_of_files(tmp_path, text, options, message):
    path = tmp_path / "gold"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_links(path, **options)


def test_missing_file(tmp_path):
    with pytest.raises(UsageError, match="missing cannot be read"):
        read_links(tmp_path / "missing")


def test_another_number_of_sentences():
    with pytest.raises(UsageError, match="2 alignments cannot be scored against 1"):
        score([frozenset()] * 2, [Gold(frozenset(), frozenset())])


def test_pharaoh():
    assert as_pharaoh(links("1-0 0-2")) == "0-2 1-0"


def test_rows_that_predict_and_that_read():
    # Source words 0, 1 and the end; target words 0, 1 and the prediction of the end.
    weights = np.array([[0.1, 0.8, 0.1], [0.7, 0.2, 0.1], [0.2, 0.2, 0.6]])
    predicts = word_weights(weights, [0, 1], [0, 1])
    reads = word_weights(weights, [0, 1], [0, 1], shift=1)
    assert link_words(predicts) == links("1-0 0-1")
    assert link_words(reads) == links("0-0")  # the end is no word


def test_links_of_all_words():
    weights = np.array([[0.6, 0.3, 0.1, 0.0], [0.0, 0.4, 0.0, 0.6]])  # the last key is the end
    assert link_words(weights) == links("0-0")
    assert link_words(weights, both=True) == links("0-0 1-1 2-0")
    weights[:, 2] = 0  # such as a comma that the model does not read
    assert link_words(weights, both=True) == links("0-0 1-1")


def test_source_words_that_many_words_attend_to_do_not_win_when_balanced():
    weights = np.array([[0.6, 0.4, 0.0, 0.0], [0.9, 0.0, 0.0, 0.1]])  # no word attends to the third
    assert link_words(weights) == links("0-0 0-1")
    found = balanced(weights)
    assert link_words(found) == link_words(found, both=True) == links("1-0 0-1")
    np.testing.assert_allclose(found.sum(axis=1), 1)
    first = weights[1] / [1.5, 0.4, 1, 1]  # after one round: the column and then the row
    second = (weights[0] / [1.5, 0.4, 1, 1]) / 1.4, first / 0.7
    columns = [*np.sum(second, axis=0)[:2], 1, 1]
    expected = [row / columns / np.sum(row / columns) for row in second]
    np.testing.assert_allclose(found, expected)


def test_weights_of_subwords():
    # Source word 0 has two tokens of 0.3 each, more than the 0.4 of word 1.
    weights = np.array([[0.3, 0.3, 0.4, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    found = word_weights(weights, [0, 0, 1], [0, 1])
    np.testing.assert_allclose(found, [[0.6, 0.4, 0], [0, 1, 0]], rtol=1e-6)
    found = word_weights(weights, [0, 0, 1], [0, 0])  # the mean of both target tokens
    np.testing.assert_allclose(found, [[0.3, 0.7, 0]], rtol=1e-6)


def test_leading_axes():
    weights = np.random.default_rng(0).random((2, 3, 4, 5))
    found = word_weights(weights, range(4), range(3))
    np.testing.assert_allclose(found[1, 2], weights[1, 2, :3], rtol=1e-6)


def test_baselines():
    assert diagonal_links([(2, 4), (3, 3), (0, 1)]) == [
        links("0-0 0-1 1-2 1-3"),
        links("0-0 1-1 2-2"),
        frozenset(),
    ]
    ((drawn), empty) = uniform_links([(5, 3), (0, 2)])
    assert {target for _, target in drawn} == {0, 1, 2} and not empty


def test_model_1_separates_words():
    # Only the noun explains what both sentences have in common (Koehn 2010, section 4.2).
    train = [(("the", "house"), ("la", "maison")), (("the", "book"), ("le", "livre"))]
    train += [(("a", "book"), ("un", "livre")), (("a", "house"), ("une", "maison"))]
    table = translation_table(train, iterations=20)
    assert table["book", "livre"] > 0.8 and table["house", "maison"] > 0.8
    assert align(train, [(("house", "a"), ("maison", "nouvelle"))]) == [links("0-0")]


def test_first_iteration_of_model_1():
    # Each of three source words takes a third; "x" meets "a" in one pair and "b" in another.
    table = translation_table([(("x", "y"), ("a",)), (("x",), ("b",))], iterations=1)
    assert table["x", "a"] == pytest.approx((1 / 3) / (1 / 3 + 1 / 2))
    assert table["y", "a"] == pytest.approx(1)

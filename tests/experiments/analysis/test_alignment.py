import numpy as np
import pytest

from experiments.analysis.alignment import (
    Gold,
    alignment_table,
    alignments,
    as_pharaoh,
    diagonal_links,
    errors,
    link_words,
    read_links,
    score,
    word_weights,
)
from experiments.analysis.collect import AttentionMaps
from experiments.errors import UsageError


def links(text):
    return frozenset(tuple(map(int, link.split("-"))) for link in text.split())


def gold(text):
    return Gold(links(text), links(text))


@pytest.mark.parametrize(
    ("predicted", "truth", "scores"),
    [
        # A = 0-0 1-1 2-2, S = 0-0 2-3, P = S + 1-1: A ∩ S is 1 link, A ∩ P is 2.
        (["0-0 1-1 2-2"], [Gold(links("0-0 2-3"), links("0-0 1-1 2-3"))], (0.4, 2 / 3, 0.5)),
        # Counts are summed: the mean of the two error rates, 0 and 1, would be 0.5.
        (["0-0", "0-1"], [gold("0-0"), gold("0-0 1-1 2-2")], (1 - 2 / 6, 1 / 2, 1 / 4)),
        ([""], [gold("")], (0, 1, 1)),
    ],
)
def test_scores(predicted, truth, scores):
    assert score([*map(links, predicted)], truth) == pytest.approx(scores)


def test_files_of_links(tmp_path):
    path = tmp_path / "gold"
    path.write_text("0-0 1p2 1?3\n\n2-1\n")
    assert read_links(path) == [Gold(links("0-0"), links("0-0 1-2 1-3")), gold(""), gold("2-1")]
    path.write_text("1-1 2p3\n")
    assert read_links(path, first=1) == [Gold(links("0-0"), links("0-0 1-2"))]
    assert as_pharaoh(links("1-0 0-2")) == "0-2 1-0"
    path.write_text("0:1\n")
    with pytest.raises(UsageError, match="line 1: a link is"):
        read_links(path)


def test_links_of_subwords():
    # Source word 0 has two tokens of 0.3 each, more than the 0.4 of word 1.
    weights = np.array([[0.3, 0.3, 0.4, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    words = word_weights(weights, [0, 0, 1], [0, 1])
    np.testing.assert_allclose(words, [[0.6, 0.4, 0], [0, 1, 0]], rtol=1e-6)
    words = word_weights(weights, [0, 0, 1], [0, 0])  # the mean of both target tokens
    np.testing.assert_allclose(words, [[0.3, 0.7, 0]], rtol=1e-6)
    # The end has the largest weight of target word 1, which source word 2 is then linked to.
    words = np.array([[0.6, 0.3, 0.1, 0.0], [0.0, 0.4, 0.0, 0.6]])
    assert link_words(words) == links("0-0 1-1 2-0")
    words[:, 2] = 0  # such as a comma that the model does not read
    assert link_words(words) == links("0-0 1-1")


def test_best_head_and_best_mean_on_validation():
    weights = np.zeros((1, 2, 3, 3), np.float32)  # head 1 crosses the words, head 2 does not
    weights[0, 0] = 0.6 * np.eye(3)[[1, 0, 2]]
    weights[0, 1] = np.eye(3)
    maps = AttentionMaps("cross", [3], weights, ["le", "chat", "<eos>"], ["the", "cat", "<eos>"])
    by_method = {method: [each] for method, each in alignments(maps, [0, 1], [0, 1]).items()}
    assert by_method["layer 3, head 1"] == [links("0-1 1-0")]
    rates = errors(by_method, [gold("0-0 1-1")])
    head, heads, diagonal = alignment_table(rates, by_method, [gold("0-1 1-0")], [(2, 2)])
    assert (head["method"], heads["method"]) == ("layer 3, head 2", "layer 3, all heads")
    assert head["validation AER"] == 0 and head["AER"] == diagonal["AER"] == 100
    assert diagonal_links((2, 4)) == links("0-0 0-1 1-2 1-3") and not diagonal_links((0, 1))

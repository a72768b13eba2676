"""Noise changes what its name describes; documents contain every sentence once."""

import numpy as np
import pytest

from experiments.data.denoising import MASK, documents, infill, permute

TOKENS = [f"w{i}" for i in range(1_009)]


def generator(seed=0):
    return np.random.default_rng(seed)


def test_infill_replaces_its_share_in_spans_of_poisson_length():
    masks, lengths = 0, []
    for seed in range(40):
        noised = infill(TOKENS, generator(seed), 0.3)
        kept = [token for token in noised if token != MASK]
        rest = iter(TOKENS)
        assert all(token in rest for token in kept)  # in their order
        assert len(TOKENS) - len(kept) == round(0.3 * len(TOKENS))
        masks += len(noised) - len(kept)
        for left, middle, right in zip(noised, noised[1:], noised[2:], strict=False):
            if middle == MASK and MASK not in (left, right):  # one span
                lengths.append(TOKENS.index(right) - TOKENS.index(left) - 1)
    assert 40 * 0.3 * len(TOKENS) / masks == pytest.approx(3, rel=0.05)
    # A single mask replaces a Poisson(3) number of tokens; 0: it is inserted.
    for length, probability in enumerate([0.0498, 0.1494, 0.2240, 0.2240, 0.1680, 0.1008]):
        assert lengths.count(length) / len(lengths) == pytest.approx(probability, rel=0.25)
    assert infill(TOKENS, generator(), 0.0) == TOKENS


def test_permute_moves_whole_sentences():
    tokens = ["a", "b", ";", "c", ";", "d", "e", "f"]
    assert {" ".join(permute(tokens, generator(seed), 1.0)) for seed in range(60)} == {
        "a b ; c ; d e f", "a b ; d e f ; c", "c ; a b ; d e f",
        "c ; d e f ; a b", "d e f ; a b ; c", "d e f ; c ; a b",
    }  # fmt: skip
    assert permute(tokens, generator(), 0.0) == tokens


@pytest.mark.parametrize("number", [2, 3, 5, 100, 101])
def test_documents_contain_every_sentence_once_in_alphabetical_order(number):
    sentences = [f"w{i}" for i in range(number)]
    texts = [text.split(" ; ") for text in documents(sentences, generator())]
    assert sorted(sentence for text in texts for sentence in text) == sorted(sentences)
    assert all(2 <= len(text) <= 4 and text == sorted(text) for text in texts)

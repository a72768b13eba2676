"""Each kind of noise changes what its name describes; documents contain every sentence once."""

import numpy as np
import pytest

from experiments.data.denoising import MASK, NOISES, delete, documents, infill, mask, permute

TOKENS = [f"w{i}" for i in range(1_009)]


def generator(seed=0):
    return np.random.default_rng(seed)


def is_subsequence(some, tokens):
    rest = iter(tokens)
    return all(token in rest for token in some)


def test_mask_keeps_every_position():
    noised = mask(TOKENS, generator(), 0.3)
    assert all(new in (MASK, old) for new, old in zip(noised, TOKENS, strict=True))
    assert noised.count(MASK) == pytest.approx(0.3 * len(TOKENS), rel=0.15)


def test_delete_leaves_a_nonempty_subsequence():
    noised = delete(TOKENS, generator(), 0.3)
    assert is_subsequence(noised, TOKENS)
    assert len(noised) == pytest.approx(0.7 * len(TOKENS), rel=0.1)
    assert all(len(delete(TOKENS[:3], generator(seed), 1.0)) == 1 for seed in range(9))


def test_infill_replaces_its_share_in_spans_of_poisson_length():
    masks, lengths = 0, []
    for seed in range(40):
        noised = infill(TOKENS, generator(seed), 0.3)
        kept = [token for token in noised if token != MASK]
        assert is_subsequence(kept, TOKENS)
        assert len(TOKENS) - len(kept) == round(0.3 * len(TOKENS))
        masks += len(noised) - len(kept)
        for left, middle, right in zip(noised, noised[1:], noised[2:], strict=False):
            if middle == MASK and MASK not in (left, right):  # one span
                lengths.append(TOKENS.index(right) - TOKENS.index(left) - 1)
    assert 40 * 0.3 * len(TOKENS) / masks == pytest.approx(3, rel=0.05)
    # A single mask replaces a Poisson(3) number of tokens; 0: it is inserted.
    for length, probability in enumerate([0.0498, 0.1494, 0.2240, 0.2240, 0.1680, 0.1008]):
        assert lengths.count(length) / len(lengths) == pytest.approx(probability, rel=0.25)
    assert {*infill(TOKENS, generator(), 1.0)} == {MASK}


def test_permute_moves_whole_sentences():
    tokens = ["a", "b", ";", "c", ";", "d", "e", "f"]
    assert {" ".join(permute(tokens, generator(seed), 1.0)) for seed in range(60)} == {
        "a b ; c ; d e f", "a b ; d e f ; c", "c ; a b ; d e f",
        "c ; d e f ; a b", "d e f ; a b ; c", "d e f ; c ; a b",
    }  # fmt: skip


@pytest.mark.parametrize("name", NOISES)
def test_noise_depends_on_its_generator_and_rate_and_keeps_its_input(name):
    tokens = [*"ab;c;def;g;hijk"]
    noised = [NOISES[name](tokens, generator(seed), 0.5) for seed in (5, 5, 6, 7, 8)]
    assert noised[0] == noised[1] and len({*map(tuple, noised)}) > 1
    assert (
        NOISES[name](tokens, generator(), 0.0)
        == tokens
        == ["a", "b", ";", "c", ";", "d", "e", "f", ";", "g", ";", "h", "i", "j", "k"]
    )


@pytest.mark.parametrize("number", [2, 3, 5, 100, 101])
def test_documents_contain_every_sentence_once_in_alphabetical_order(number):
    sentences = [f"w{i}" for i in range(number)]
    texts = [text.split(" ; ") for text in documents(sentences, generator())]
    assert sorted(sentence for text in texts for sentence in text) == sorted(sentences)
    assert all(2 <= len(text) <= 4 and text == sorted(text) for text in texts)

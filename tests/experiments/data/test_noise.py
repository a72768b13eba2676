"""Each kind of noise changes what its name describes, and nothing else."""

import numpy as np
import pytest

from experiments.data.noise import MASK, NOISES, add_noise, delete, infill, mask, permute

TOKENS = [f"w{i}" for i in range(1_009)]


def generator(seed=0):
    return np.random.default_rng(seed)


def is_part(some, all_):
    """Return whether tokens are a subsequence of others."""
    rest = iter(all_)
    return all(token in rest for token in some)


def test_mask_keeps_every_position():
    noised = mask(TOKENS, generator(), 0.3)
    assert all(new in (MASK, old) for new, old in zip(noised, TOKENS, strict=True))
    assert noised.count(MASK) == pytest.approx(0.3 * len(TOKENS), rel=0.15)


def test_delete_leaves_a_nonempty_subsequence():
    noised = delete(TOKENS, generator(), 0.3)
    assert MASK not in noised
    assert is_part(noised, TOKENS)
    assert len(noised) == pytest.approx(0.7 * len(TOKENS), rel=0.1)
    for seed in range(9):
        assert delete(TOKENS[:3], generator(seed), 1.0) in ([["w0"], ["w1"], ["w2"]])


def spans(noised, tokens):
    """Return the number of tokens that each run of masks replaces, and its number of masks."""
    found, place, masks = [], 0, 0
    for token in [*noised, None]:
        if token == MASK:
            masks += 1
            continue
        there = len(tokens) if token is None else tokens.index(token)
        if masks:
            found.append((there - place, masks))
        else:
            assert there == place
        place, masks = there + 1, 0
    return found


def test_infill_replaces_its_share_in_spans_of_poisson_length():
    hidden, masks, lengths = 0, 0, []
    for seed in range(40):
        noised = infill(TOKENS, generator(seed), 0.3)
        kept = [token for token in noised if token != MASK]
        assert is_part(kept, TOKENS)
        assert len(TOKENS) - len(kept) == round(0.3 * len(TOKENS))
        hidden += len(TOKENS) - len(kept)
        masks += noised.count(MASK)
        lengths += [length for length, number in spans(noised, TOKENS) if number == 1]
    assert hidden / masks == pytest.approx(3, rel=0.05)
    assert lengths.count(0) > 0  # an inserted mask
    # A single mask replaces a Poisson(3) number of tokens.
    for length, probability in enumerate([0.0498, 0.1494, 0.2240, 0.2240, 0.1680, 0.1008]):
        assert lengths.count(length) / len(lengths) == pytest.approx(probability, rel=0.25)


def test_infill_of_all_tokens_and_of_none():
    assert {*infill(TOKENS, generator(), 1.0)} == {MASK}
    assert infill(TOKENS, generator(), 0.0) == TOKENS


def test_permute_moves_whole_sentences():
    tokens = ["a", "b", ";", "c", ";", "d", "e", "f"]
    seen = {" ".join(permute(tokens, generator(seed), 1.0)) for seed in range(60)}
    assert seen == {
        "a b ; c ; d e f", "a b ; d e f ; c", "c ; a b ; d e f",
        "c ; d e f ; a b", "d e f ; a b ; c", "d e f ; c ; a b",
    }  # fmt: skip
    assert all(permute(tokens, generator(seed), 0.0) == tokens for seed in range(9))


@pytest.mark.parametrize("name", NOISES)
def test_noise_depends_on_its_generator_and_keeps_its_input(name):
    tokens = ["a", "b", ";", "c", ";", "d", "e", "f", ";", "g", ";", "h", "i", "j", "k"]
    before = tokens.copy()
    noised = [NOISES[name](tokens, generator(seed), 0.5) for seed in (5, 5, 6, 7, 8)]
    assert tokens == before
    assert noised[0] == noised[1]
    assert len({*map(tuple, noised)}) > 1


def test_noise_kinds_are_applied_in_order():
    rates = {"delete": 0.3, "mask": 0.4}
    random = generator()
    expected = mask(delete(TOKENS, random, 0.3), random, 0.4)
    assert add_noise(TOKENS, generator(), ("delete", "mask"), rates) == expected
    assert add_noise(TOKENS, generator(), (), rates) == TOKENS

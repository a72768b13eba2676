"""Kinds of noise in a document, as in BART (Lewis et al. 2020, section 2.2).

Each is a pure function of (tokens, random, rate), and keeps at least one token.
"""

from collections.abc import Mapping, Sequence

import numpy as np

MASK = "<mask>"
BETWEEN = ";"  # separates the sentences of a document
SPAN = 3  # tokens, the mean length of an infilled span


def mask(tokens: Sequence[str], random: np.random.Generator, rate: float) -> list[str]:
    """Replace each token by a mask, with probability `rate`."""
    hidden = random.random(len(tokens)) < rate
    return [MASK if hide else token for token, hide in zip(tokens, hidden, strict=True)]


def delete(tokens: Sequence[str], random: np.random.Generator, rate: float) -> list[str]:
    """Delete each token with probability `rate`, without a mark."""
    kept = random.random(len(tokens)) >= rate
    kept[random.integers(len(tokens))] |= not kept.any()
    return [token for token, keep in zip(tokens, kept, strict=True) if keep]


def infill(tokens: Sequence[str], random: np.random.Generator, rate: float) -> list[str]:
    """Replace random spans, together `rate` of all tokens, by one mask each.

    Lengths are Poisson with mean 3; a span of length 0 inserts a mask.
    """
    budget = round(rate * len(tokens))
    spans: list[int] = []
    while sum(spans) < budget:
        spans.append(min(int(random.poisson(SPAN)), budget - sum(spans)))
    # Kept tokens and spans in a uniformly random order.
    items = np.array([*spans, *[-1] * (len(tokens) - budget)], int)
    noised, place = [], 0
    for span in random.permutation(items):
        noised.append(tokens[place] if span < 0 else MASK)
        place += 1 if span < 0 else span
    return noised


def permute(tokens: Sequence[str], random: np.random.Generator, rate: float) -> list[str]:
    """Permute the sentences, in a share `rate` of the documents."""
    if random.random() >= rate:
        return list(tokens)
    sentences = " ".join(tokens).split(f" {BETWEEN} ")
    return f" {BETWEEN} ".join(random.permutation(sentences).tolist()).split()


NOISES = {"mask": mask, "delete": delete, "infill": infill, "permute": permute}


def add_noise(
    tokens: Sequence[str],
    random: np.random.Generator,
    names: Sequence[str],
    rates: Mapping[str, float],
) -> list[str]:
    """Apply the named kinds of noise, one after another."""
    for name in names:
        tokens = NOISES[name](tokens, random, rates[name])
    return list(tokens)

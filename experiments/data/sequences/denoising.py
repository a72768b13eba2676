"""Denoising: from a spoiled document to the document, as BART learns (Lewis et al. 2020).

A document is two to four English sentences of the toy language. They stand in alphabetical order,
so that it can be known in which order they stood before they were permuted.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from attention.primitives.choice import one_of
from experiments.data.pairs import SentencePair
from experiments.data.sequences import toy
from experiments.data.sequences.draw import generator
from experiments.data.sequences.noise import BETWEEN, NOISES, spoil
from experiments.data.source import Source
from experiments.data.tokenizers import Words
from experiments.data.toy_language import Sizes
from experiments.errors import check_at_least

FEWEST, MOST = 2, 4  # sentences of a document


def check(config: ConfigDict) -> None:
    """Checks the sizes of the splits and the kinds of noise."""
    check_at_least("data.seed", config.seed, 0)
    check_at_least("data.passes", config.passes, 1)
    _sizes(config)
    for split in ("validation", "test"):
        check_at_least(f"data.sizes.{split}", config.sizes[split], FEWEST)
    for name in config.noise:
        one_of("data.noise", name, tuple(NOISES))
    for name, rate in config.rates.items():
        if not 0 <= rate <= 1:
            raise ValueError(f"data.rates.{name} must lie in [0, 1], got {rate}")


def load(config: ConfigDict, split: str, cache: Path) -> list[SentencePair]:
    """One split; in each pass over train, sentences meet others and are spoiled anew."""
    random = generator(config.seed, split)
    pairs = toy.load_pairs(config.seed, _sizes(config), split, cache)
    sentences = [pair.source for pair in pairs]
    return [
        SentencePair(" ".join(spoil(text.split(), random, config.noise, config.rates)), text)
        for _ in range(config.passes if split == "train" else 1)
        for text in documents(sentences, random)
    ]


def documents(sentences: Sequence[str], random: np.random.Generator) -> Iterator[str]:
    """Every sentence once, in documents that are drawn at random."""
    order = iter(random.permutation(len(sentences)).tolist())
    left = len(sentences)
    while left:
        number = min(left, int(random.integers(FEWEST, MOST, endpoint=True)))
        if left - number == 1:  # which would leave a sentence alone
            number += 1 if number == FEWEST else -1
        left -= number
        yield f" {BETWEEN} ".join(sorted(sentences[i] for i in islice(order, number)))


def _sizes(config: ConfigDict) -> Sizes:
    """Of the toy language: the splits that this task does not have are as small as can be."""
    return Sizes(**config.sizes, compositional=1, longer=1)


SOURCE = Source(load, check, text=Words(shared=True))

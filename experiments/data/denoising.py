"""Denoising: the source is a document with noise, the target the document (Lewis et al. 2020).

A document is two to four English sentences of the toy language in alphabetical order, so that their
order can be restored after a permutation.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from experiments.config.build import as_tree
from experiments.config.data import DenoisingData, ToySizes
from experiments.data import toy
from experiments.data.draw import generator
from experiments.data.noise import BETWEEN, add_noise
from experiments.data.pairs import SentencePair
from experiments.data.source import Source
from experiments.data.tokenizers import Words

FEWEST, MOST = 2, 4  # sentences of a document


def load(config: DenoisingData, split: str, cache: Path) -> list[SentencePair]:
    """Return a split; each pass over train has other documents and other noise."""
    random = generator(config.seed, split)
    pairs = toy.load_pairs(config.seed, _sizes(config), split, cache)
    sentences, rates = [pair.source for pair in pairs], as_tree(config.rates)
    return [
        SentencePair(" ".join(add_noise(text.split(), random, config.noise, rates)), text)
        for _ in range(config.passes if split == "train" else 1)
        for text in documents(sentences, random)
    ]


def documents(sentences: Sequence[str], random: np.random.Generator) -> Iterator[str]:
    """Yield every sentence once, in random documents."""
    order = iter(random.permutation(len(sentences)).tolist())
    left = len(sentences)
    while left:
        number = min(left, int(random.integers(FEWEST, MOST, endpoint=True)))
        if left - number == 1:  # a document of one sentence would be left
            number += 1 if number == FEWEST else -1
        left -= number
        yield f" {BETWEEN} ".join(sorted(sentences[i] for i in islice(order, number)))


def _sizes(config: DenoisingData) -> ToySizes:
    """Return sizes of the toy language; the splits that denoising lacks have one sentence."""
    return ToySizes(**as_tree(config.sizes), compositional=1, longer=1)


SOURCE = Source(load, text=Words(shared=True))

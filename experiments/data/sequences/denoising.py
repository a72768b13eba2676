"""Denoising: from a spoiled document to the document, as BART learns (Lewis et al. 2020).

A document is two to four English sentences of the toy language. They stand in alphabetical order,
so that it can be known in which order they stood before they were permuted.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from experiments.config.build import as_tree
from experiments.config.data import DenoisingData
from experiments.data.pairs import SentencePair
from experiments.data.sequences import toy
from experiments.data.sequences.draw import generator
from experiments.data.sequences.noise import BETWEEN, spoil
from experiments.data.source import Source
from experiments.data.tokenizers import Words
from experiments.data.toy_language import Sizes

FEWEST, MOST = 2, 4  # sentences of a document


def load(config: DenoisingData, split: str, cache: Path) -> list[SentencePair]:
    """One split; in each pass over train, sentences meet others and are spoiled anew."""
    random = generator(config.seed, split)
    pairs = toy.load_pairs(config.seed, _sizes(config), split, cache)
    sentences, rates = [pair.source for pair in pairs], as_tree(config.rates)
    return [
        SentencePair(" ".join(spoil(text.split(), random, config.noise, rates)), text)
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


def _sizes(config: DenoisingData) -> Sizes:
    """Of the toy language: the splits that this task does not have are as small as can be."""
    return Sizes(**as_tree(config.sizes), compositional=1, longer=1)


SOURCE = Source(load, text=Words(shared=True))

"""Denoising: the source is a document with noise, the target the document (Lewis et al. 2020).

A document is two to four English sentences of the toy language in alphabetical order, so that their
order can be restored after a permutation. The noise is that of the paper's best model: permuted
sentences and infilled spans (section 2.2).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np

from experiments.config.build import as_tree, option
from experiments.config.parts import SMALLEST_TRAIN, RandomData, Sizes
from experiments.data.examples import SentencePair
from experiments.data.sequences import generator
from experiments.data.source import Source
from experiments.data.tokenizers import Words
from experiments.data.toy import ToySizes, load_pairs
from experiments.registry import dataset

FEWEST, MOST = 2, 4  # sentences of a document
BETWEEN = ";"  # separates the sentences of a document
MASK = "<mask>"
SPAN = 3  # tokens, the mean length of an infilled span


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
    noised, position = [], 0
    for span in random.permutation(items):
        noised.append(tokens[position] if span < 0 else MASK)
        position += 1 if span < 0 else span
    return noised


def permute(tokens: Sequence[str], random: np.random.Generator, rate: float) -> list[str]:
    """Permute the sentences, in a share `rate` of the documents."""
    if random.random() >= rate:
        return list(tokens)
    sentences = " ".join(tokens).split(f" {BETWEEN} ")
    return f" {BETWEEN} ".join(random.permutation(sentences).tolist()).split()


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


def load(config: "DenoisingData", split: str, cache: Path) -> list[SentencePair]:
    """Return a split; each pass over train has other documents and other noise."""
    random = generator(config.seed, split)
    # The splits of the toy language that denoising lacks have one sentence.
    sizes = ToySizes(**as_tree(config.sizes), compositional=1, longer=1)
    sentences = [pair.source for pair in load_pairs(config.seed, sizes, split, cache)]
    pairs = []
    for _ in range(config.passes if split == "train" else 1):
        for text in documents(sentences, random):
            tokens = permute(text.split(), random, config.permute)
            pairs.append(SentencePair(" ".join(infill(tokens, random, config.infill)), text))
    return pairs


@dataclass(frozen=True, kw_only=True)
class DenoisingSizes(Sizes):
    """Sentences of each split; a document has at least two."""

    train: int = option(20_000, least=SMALLEST_TRAIN)
    validation: int = option(600, least=2)
    test: int = option(600, least=2)


@dataset(source=Source(load, text=Words(shared=True)), contains=("pairs",))
@dataclass(frozen=True, kw_only=True)
class DenoisingData(RandomData):
    """Noised documents of the toy language, and the documents."""

    is_shared: ClassVar[bool] = True
    name: str = "denoising"
    passes: int = option(3, "over the training sentences, with other noise in each", least=1)
    sizes: DenoisingSizes = field(default_factory=DenoisingSizes)
    permute: float = option(1.0, "share of documents whose sentences are permuted", least=0)
    infill: float = option(0.2, "share of tokens in spans that one mask replaces", least=0, below=1)

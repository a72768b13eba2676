"""Denoising: the source is a document with noise, the target the document (Lewis et al. 2020).

A document is two to four English sentences of the toy language in alphabetical order, so that their
order can be restored after a permutation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np

from experiments.config.build import as_tree, option
from experiments.config.data import NOISES, SMALLEST_TRAIN, RandomData, Sizes
from experiments.data import toy
from experiments.data.draw import generator
from experiments.data.noise import BETWEEN, add_noise
from experiments.data.pairs import SentencePair
from experiments.data.source import Source
from experiments.data.tokenizers import Words
from experiments.data.toy_language.corpus import ToySizes
from experiments.errors import one_of
from experiments.registry import dataset

FEWEST, MOST = 2, 4  # sentences of a document


def load(config: "DenoisingData", split: str, cache: Path) -> list[SentencePair]:
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


def _sizes(config: "DenoisingData") -> ToySizes:
    """Return sizes of the toy language; the splits that denoising lacks have one sentence."""
    return ToySizes(**as_tree(config.sizes), compositional=1, longer=1)


SOURCE = Source(load, text=Words(shared=True))


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rate of each kind of noise."""

    permute: float = option(1.0, "share of documents whose sentences are permuted")
    infill: float = option(0.2, "share of tokens in spans that one mask replaces")
    mask: float = option(0.15, "probability of a mask in place of a token")
    delete: float = option(0.1, "probability that a token is deleted")

    def __post_init__(self) -> None:
        """Check the fields."""
        for one in fields(self):
            if not 0 <= getattr(self, one.name) <= 1:
                raise ValueError(f"{one.name} must be in [0, 1], got {getattr(self, one.name)}")


@dataclass(frozen=True, kw_only=True)
class DenoisingSizes(Sizes):
    """Sentences of each split; a document has at least two."""

    train: int = option(20_000, least=SMALLEST_TRAIN)
    validation: int = option(600, least=2)
    test: int = option(600, least=2)


@dataset(source=SOURCE, contains=("pairs",))
@dataclass(frozen=True, kw_only=True)
class DenoisingData(RandomData):
    """Noised documents of the toy language, and the documents."""

    is_shared: ClassVar[bool] = True
    name: str = "denoising"
    passes: int = option(3, "over the training sentences, with other noise in each", least=1)
    sizes: DenoisingSizes = field(default_factory=DenoisingSizes)
    noise: tuple[str, ...] = option(("permute", "infill"), f"in this order: {', '.join(NOISES)}")
    rates: Rates = field(default_factory=Rates)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        for name in self.noise:
            one_of("noise", name, NOISES)

"""Denoising: the source is a document with noise, the target the document (Lewis et al. 2020).

A document is two to four English sentences of the toy language in alphabetical order, so that their
order can be restored after a permutation. Each kind of noise (section 2.2 of the paper) is a
function of (tokens, random, rate), and keeps at least one token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from experiments.config.build import as_tree, option
from experiments.config.parts import SMALLEST_TRAIN, RandomData, Sizes
from experiments.data.sequences import generator
from experiments.data.source import Source
from experiments.data.tokenizers import SentencePair, Words
from experiments.data.toy import ToySizes, load_pairs
from experiments.registry import dataset

FEWEST, MOST = 2, 4  # sentences of a document
BETWEEN = ";"  # separates the sentences of a document
MASK = "<mask>"
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
            tokens = text.split()
            for noise in config.noise:
                tokens = NOISES[noise](tokens, random, getattr(config.rates, noise))
            pairs.append(SentencePair(" ".join(tokens), text))
    return pairs


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rate of each kind of noise."""

    permute: float = option(1.0, "share of documents whose sentences are permuted")
    infill: float = option(0.2, "share of tokens in spans that one mask replaces")
    mask: float = option(0.15, "probability of a mask in place of a token")
    delete: float = option(0.1, "probability that a token is deleted")

    def __post_init__(self) -> None:
        """Check the fields."""
        for name, rate in as_tree(self).items():
            if not 0 <= rate <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {rate}")


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

    name: str = "denoising"
    passes: int = option(3, "over the training sentences, with other noise in each", least=1)
    sizes: DenoisingSizes = field(default_factory=DenoisingSizes)
    noise: tuple[str, ...] = option(
        ("permute", "infill"), f"in this order: {', '.join(NOISES)}", among=NOISES
    )
    rates: Rates = field(default_factory=Rates)

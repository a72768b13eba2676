"""Handwritten digits: 1,797 small images that come with scikit-learn."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.config.parts import RandomData
from experiments.data.source import Source
from experiments.data.tokenizers import SentencePair
from experiments.registry import dataset

DARKEST = 16  # of a pixel, as scikit-learn delivers it
SIZES = {"test": 360, "validation": 180, "train": 1_257}


def load(config: "DigitsData", split: str, _: Path) -> Iterator[SentencePair]:
    """Yield images `[8, 8, 1]`, from 0 (paper) to 1 (ink), and the names of their classes."""
    from sklearn.datasets import load_digits  # takes a second

    data = load_digits()
    images = (data.images / DARKEST).astype(np.float32)[..., None]
    order = np.random.default_rng(config.seed).permutation(len(images))
    parts = np.split(order, np.cumsum([*SIZES.values()])[:-1])
    for i in dict(zip(SIZES, parts, strict=True))[split]:
        yield SentencePair(images[i], str(data.target[i]))


@dataset(source=Source(load, has_images=True), contains=("images",))
@dataclass(frozen=True, kw_only=True)
class DigitsData(RandomData):
    """Images of handwritten digits."""

    name: str = "digits"

"""Handwritten digits: 1,797 small images that come with scikit-learn."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.config.data import DigitsData
from experiments.data.pairs import SentencePair
from experiments.data.source import Source

IMAGE_SHAPE = 8, 8, 1
NUM_CLASSES = 10
DARKEST = 16  # of a pixel, as scikit-learn delivers it
NUM_VALIDATION, NUM_TEST = 180, 360


class Digits(NamedTuple):
    """Images and their classes.

    Attributes:
        images: `[B, 8, 8, 1]` float32, from 0 (paper) to 1 (ink).
        labels: `[B]` int32, from 0 to 9.
    """

    images: np.ndarray
    labels: np.ndarray


def digits(seed: int = 0) -> dict[str, Digits]:
    """Return all images, shuffled and split: 1,257 for training, 180 validation, 360 test.

    Args:
        seed: equal seeds give equal splits.
    """
    from sklearn.datasets import load_digits  # takes a second

    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.target))
    images = (data.images / DARKEST).astype(np.float32).reshape(-1, *IMAGE_SHAPE)[order]
    labels = data.target.astype(np.int32)[order]
    cuts = NUM_TEST, NUM_TEST + NUM_VALIDATION
    parts = zip(np.split(images, cuts), np.split(labels, cuts), strict=True)
    test, validation, train = (Digits(*part) for part in parts)
    return {"train": train, "validation": validation, "test": test}


def load(config: DigitsData, split: str, cache: Path) -> Iterator[SentencePair]:
    """Return a split: images and the names of their classes."""
    del cache
    part = digits(config.seed)[split]
    return map(SentencePair, part.images, map(str, part.labels.tolist()))


SOURCE = Source(load, has_images=True)

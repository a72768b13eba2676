"""Digits: every image once, with its label, in [0, 1]."""

from collections import Counter

import numpy as np
import pytest

from experiments.data.digits import SIZES, DigitsData, load


def read(split, seed=0):
    return [*load(DigitsData(seed=seed), split, None)]


@pytest.fixture(scope="module")
def splits():
    return {split: read(split) for split in SIZES}


def test_sizes_and_values(splits):
    assert {split: len(examples) for split, examples in splits.items()} == SIZES
    for examples in splits.values():
        images = np.stack([example.source for example in examples])
        assert (images.shape[1:], images.dtype) == ((8, 8, 1), np.float32)
        assert (images.min(), images.max()) == (0, 1)
        classes = Counter(example.target for example in examples)
        assert {*classes} == {*"0123456789"}
        assert min(classes.values()) >= 10


def test_every_image_is_in_one_split_with_its_label(splits):
    from sklearn.datasets import load_digits  # takes a second, in each worker

    data = load_digits()
    ours = [
        (*(16 * example.source.ravel()), int(example.target))
        for examples in splits.values()
        for example in examples
    ]
    assert sorted(ours) == sorted(
        (*image.ravel(), label) for image, label in zip(data.images, data.target, strict=True)
    )


def test_equal_seeds_give_equal_splits(splits):
    def labels(examples):
        return [example.target for example in examples]

    assert labels(read("test")) == labels(splits["test"])
    assert labels(read("test", seed=1)) != labels(splits["test"])

"""Digits: every image once, with its label, in [0, 1]."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from experiments.data.digits import IMAGE_SHAPE, NUM_CLASSES, digits


@pytest.fixture(scope="module")
def splits():
    return digits()


def test_sizes_and_values(splits):
    sizes = {name: len(split.labels) for name, split in splits.items()}
    assert sizes == {"train": 1257, "validation": 180, "test": 360}
    for images, labels in splits.values():
        assert images.shape == (len(labels), *IMAGE_SHAPE)
        assert (images.dtype, labels.dtype) == (np.float32, np.int32)
        assert (images.min(), images.max()) == (0, 1)
        assert np.bincount(labels, minlength=NUM_CLASSES).min() >= 10


def test_every_image_is_in_one_split_with_its_label(splits):
    def rows(images, labels):
        return sorted((*row, label) for row, label in zip(images, labels, strict=True))

    data = load_digits()
    ours = [
        row
        for images, labels in splits.values()
        for row in rows(16 * images.reshape(-1, 64), labels)
    ]
    assert sorted(ours) == rows(data.images.reshape(-1, 64), data.target)


def test_equal_seeds_give_equal_splits(splits):
    again, other = digits(0), digits(1)
    np.testing.assert_array_equal(again["test"].labels, splits["test"].labels)
    assert (other["test"].labels != splits["test"].labels).any()

"""Digits: every image once, with its label, in [0, 1]."""

import numpy as np

from experiments.data.digits import SIZES, DigitsData, load


def test_every_image_is_in_one_split_with_its_label():
    from sklearn.datasets import load_digits  # takes a second, in each worker

    splits = {split: [*load(DigitsData(), split, None)] for split in SIZES}
    assert {split: len(examples) for split, examples in splits.items()} == SIZES
    examples = [example for split in splits.values() for example in split]
    images = np.stack([example.source for example in examples])
    assert (images.shape[1:], images.dtype) == ((8, 8, 1), np.float32)
    assert (images.min(), images.max()) == (0, 1)
    data = load_digits()
    ours = [(*(16 * pair.source.ravel()), int(pair.target)) for pair in examples]
    theirs = [
        (*image.ravel(), label) for image, label in zip(data.images, data.target, strict=True)
    ]
    assert sorted(ours) == sorted(theirs)
    other = [*load(DigitsData(seed=1), "test", None)]
    assert [pair.target for pair in other] != [pair.target for pair in splits["test"]]

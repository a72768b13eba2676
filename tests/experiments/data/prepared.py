"""Prepare a TFDS dataset of given pairs, without TensorFlow."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds

NAME = "captions/en_de"


class Captions(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A dataset of given pairs."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar = [tfds.core.BuilderConfig(name="en_de")]

    splits: Mapping[str, Any]

    def _info(self) -> tfds.core.DatasetInfo:
        features = tfds.features.Translation(languages=("en", "de"))
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        del dl_manager
        return self.splits

    def _generate_examples(self) -> Iterator:
        raise NotImplementedError


def prepare(
    data_dir: Path,
    splits: Mapping[str, Sequence[tuple[str | bytes, str | bytes]]],
    create: Callable[[list[tuple[int, dict[str, str | bytes]]]], Any] = iter,
) -> Path:
    """Write the splits and return the directory of the version.

    Args:
        data_dir: folder of all datasets.
        splits: the pairs of each.
        create: what the builder takes as the numbered examples of a split.
    """
    tfds.disable_progress_bar()
    builder = Captions(data_dir=str(data_dir), file_format="array_record")
    builder.splits = {
        split: create([(i, {"en": source, "de": target}) for i, (source, target) in enumerate(one)])
        for split, one in splits.items()
    }
    builder.download_and_prepare()
    return Path(builder.data_dir)

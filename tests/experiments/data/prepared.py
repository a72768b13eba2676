"""Prepare a TFDS dataset of given pairs, without TensorFlow."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import tensorflow_datasets as tfds

NAME = "captions/en_de"


class Captions(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A dataset of the numbered pairs in `splits`."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar = [tfds.core.BuilderConfig(name="en_de")]

    def _info(self):
        features = tfds.features.Translation(languages=("en", "de"))
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(pairs) for split, pairs in self.splits.items()}

    def _generate_examples(self, pairs):
        return ((i, {"en": source, "de": target}) for i, (source, target) in enumerate(pairs))


def prepare(data_dir: Path, splits: Mapping[str, Sequence[tuple[str | bytes, ...]]]) -> Path:
    """Write splits into the folder of all datasets, and return the directory of the version."""
    tfds.disable_progress_bar()
    builder = Captions(data_dir=str(data_dir), file_format="array_record")
    builder.splits = splits
    builder.download_and_prepare()
    return Path(builder.data_dir)

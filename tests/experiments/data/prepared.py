"""Prepare a TFDS dataset of given pairs, without TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import tensorflow_datasets as tfds

NAME = "captions/en_de"


class Captions(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A dataset of given pairs."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar = [tfds.core.BuilderConfig(name="en_de")]

    splits: Mapping[str, Sequence[tuple[str | bytes, str | bytes]]]

    def _info(self) -> tfds.core.DatasetInfo:
        features = tfds.features.Translation(languages=("en", "de"))
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        del dl_manager
        return {split: self._generate_examples(split) for split in self.splits}

    def _generate_examples(self, split: str) -> Iterator:
        for number, (source, target) in enumerate(self.splits[split]):
            yield number, {"en": source, "de": target}


def prepare(
    data_dir: Path, splits: Mapping[str, Sequence[tuple[str | bytes, str | bytes]]]
) -> Path:
    """Write the splits and return the directory of the version."""
    tfds.disable_progress_bar()
    builder = Captions(data_dir=str(data_dir), file_format="array_record")
    builder.splits = splits
    builder.download_and_prepare()
    return Path(builder.data_dir)

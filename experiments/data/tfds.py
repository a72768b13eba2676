"""Datasets of TFDS by name: pairs of texts, or texts and their classes.

Preparing a dataset by its command needs TensorFlow and a network. Reading needs neither, if it was
prepared as array_record, on whatever machine:

    tfds build ted_hrlr_translate/pt_to_en --file_format=array_record

`data.dataset` is its name, with its configuration and, for another version than the newest, that
after a colon; `data.path` is the folder of all datasets, "" that of TFDS itself. `data.splits`
names train, validation and test, also parts: "train[:90%]".
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import tensorflow_datasets as tfds

from experiments.config.build import option
from experiments.config.parts import Splits
from experiments.data.corpora import CORPUS_OR_TEXT, CorpusData, Line
from experiments.errors import UsageError, as_usage_errors, one_of
from experiments.registry import dataset

INFO = "dataset_info.json"
CHUNK = 4_096  # examples that are read at once


@dataset(source=CORPUS_OR_TEXT, contains=("text", "pairs", "classes"))
@dataclass(frozen=True, kw_only=True)
class TfdsData(CorpusData):
    """A dataset of TFDS that has been prepared: two of its features."""

    name: str = "tfds"
    dataset: str = option("ted_hrlr_translate/pt_to_en", "name; a version after a colon")
    source: str = option("en", "feature that is read, a text")
    target: str = option("de", "feature that is predicted or written, a text or a class")
    splits: Splits = field(default_factory=Splits)

    def list_files(self) -> list[Path]:
        """List the description of the dataset, which changes with it."""
        return [self._directory() / INFO]

    def lines(self, split: str) -> Iterator[tuple[Line, ...]]:
        """Yield the features of every example.

        Raises:
            ValueError: a dataset that is not prepared, a feature that it does not have.
            UsageError: a split that it does not have, a file that is missing or damaged.
        """
        part, directory = getattr(self.splits, split), self._directory()
        builder = tfds.builder_from_directory(directory)
        features, text = builder.info.features, tfds.features.Text
        kinds = {"source": text, "target": text | tfds.features.ClassLabel}
        names = {side: name for side in kinds if (name := getattr(self, side))}
        for side, name in names.items():
            known = [key for key in features if isinstance(features[key], kinds[side])]
            one_of(f"data.{side}", name, known)
        with as_usage_errors(f"data.splits.{split}={part!r}: "):
            builder.info.splits[part]
        try:
            stored = builder.as_data_source(split=part)
            for start in range(0, len(stored), CHUNK):
                numbers = range(start, min(start + CHUNK, len(stored)))
                for number, example in zip(numbers, stored.__getitems__(numbers), strict=True):
                    origin = f"{self.dataset}, {part}, example {number}"
                    yield tuple(
                        _line(f"{origin}, {name}", features[name], example[name])
                        for name in names.values()
                    )
        except RuntimeError as error:  # of array_record
            raise UsageError(f"{directory} cannot be read: {error}") from error

    def _directory(self) -> Path:
        """Return the folder of the newest version, or of the one that is named."""
        name, _, version = self.dataset.partition(":")
        folder = Path(self.path or tfds.core.constants.DATA_DIR)
        versions = [path.parent.name for path in (folder / name).glob(f"*/{INFO}")]
        versions = sorted(filter(tfds.core.Version.is_valid, versions), key=tfds.core.Version)
        if not versions or version not in ("", *versions):
            raise ValueError(
                f"data.dataset={self.dataset} is not prepared in {folder}: with TensorFlow, `tfds "
                f"build {self.dataset} --data_dir={folder} --file_format=array_record` prepares it"
            )
        return folder / name / (version or versions[-1])


def _line(origin: str, feature: tfds.features.FeatureConnector, value: bytes | int) -> Line:
    """Return a text, or the name of a class; TFDS has -1 for an example without one."""
    if not isinstance(feature, tfds.features.ClassLabel):
        return Line.of(origin, value)
    return Line(origin, "", "no class") if value < 0 else Line(origin, feature.int2str(value))

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
from experiments.data.corpora import CorpusData, Line, corpus_source
from experiments.errors import UsageError, one_of
from experiments.files import read_json
from experiments.registry import dataset

FORMAT = tfds.core.FileFormat.ARRAY_RECORD
INFO = "dataset_info.json"
CHUNK = 4_096  # examples that are read at once


def lines(config: "TfdsData", split: str) -> Iterator[tuple[Line, ...]]:
    """Yield the source and target, if `config.target` is one, of every example.

    Raises:
        ValueError: a dataset that is not prepared, a feature or a split that it does not have.
        UsageError: a file that is missing or damaged.
    """
    part, builder = getattr(config.splits, split), _builder(config)
    features, splits = builder.info.features, builder.info.splits
    kinds = {"source": tfds.features.Text, "target": tfds.features.Text | tfds.features.ClassLabel}
    names = {side: name for side in kinds if (name := getattr(config, side))}
    for side, name in names.items():
        one_of(f"data.{side}", name, [n for n in features if isinstance(features[n], kinds[side])])
    try:
        splits[part]
    except ValueError as error:
        sizes = ", ".join(f"{name} ({known.num_examples:,})" for name, known in splits.items())
        raise ValueError(
            f"data.splits.{split}={part!r} is no split of {config.dataset}, nor a part of one, "
            f"which has {sizes}"
        ) from error
    try:
        stored = builder.as_data_source(split=part)
        for start in range(0, len(stored), CHUNK):
            numbers = range(start, min(start + CHUNK, len(stored)))
            for number, example in zip(numbers, stored.__getitems__(numbers), strict=True):
                origin = f"{config.dataset}, {part}, example {number}"
                yield tuple(
                    _line(f"{origin}, {name}", features[name], example[name])
                    for name in names.values()
                )
    except RuntimeError as error:  # of array_record
        raise UsageError(f"{builder.data_dir} cannot be read: {error}") from error


def _line(origin: str, feature: tfds.features.FeatureConnector, value: bytes | int) -> Line:
    """Return a text, or the name of a class; TFDS has -1 for an example without one."""
    if not isinstance(feature, tfds.features.ClassLabel):
        return Line.of(origin, value)
    return Line(origin, "", "no class") if value < 0 else Line(origin, feature.int2str(value))


def _builder(config: "TfdsData") -> tfds.core.DatasetBuilder:
    """Open the newest version, or the one that is named."""
    name, _, version = config.dataset.partition(":")
    folder = Path(config.path or tfds.core.constants.DATA_DIR)
    versions = [path.parent.name for path in (folder / name).glob(f"*/{INFO}")]
    versions = sorted(filter(tfds.core.Version.is_valid, versions), key=tfds.core.Version)
    if not versions or version not in ("", *versions):
        raise ValueError(
            f"data.dataset={config.dataset} is not prepared in {folder}: with TensorFlow, `tfds "
            f"build {config.dataset} --data_dir={folder} --file_format={FORMAT.value}` prepares it"
        )
    directory = folder / name / (version or versions[-1])
    read_json(directory / INFO, {"name": str, "version": str})  # raises if it is damaged
    builder = tfds.builder_from_directory(directory)
    if FORMAT not in builder.info.available_file_formats():
        raise ValueError(
            f"{directory} is prepared as {builder.info.file_format.value}: with TensorFlow, `tfds "
            f"convert_format --dataset_version_dir={directory} --out_file_format={FORMAT.value}` "
            f"adds {FORMAT.value}"
        )
    return builder


SOURCE = corpus_source(
    lines, lambda config: [Path(_builder(config).data_dir) / INFO], may_lack_target=True
)


@dataset(source=SOURCE, contains=("text", "pairs", "classes"))
@dataclass(frozen=True, kw_only=True)
class TfdsData(CorpusData):
    """A dataset of TFDS that has been prepared: two of its features."""

    name: str = "tfds"
    dataset: str = option("ted_hrlr_translate/pt_to_en", "name; a version after a colon")
    source: str = option("en", "feature that is read, a text")
    target: str = option("de", "feature that is predicted or written, a text or a class")
    splits: Splits = field(default_factory=Splits)

"""TFDS datasets by name: prepared ones are read, others raise one sentence."""

import pytest

from experiments.errors import UsageError
from tests.experiments.data.corpora import changed, data_part, load_split
from tests.experiments.data.prepared import NAME, prepare

PAIRS = [("a dog", "ein Hund"), ("two dogs", "zwei Hunde"), ("naïve", "naïf")]
FAULTS = [
    (("", "nichts"), "example 1, en: an empty text"),
    (("something", "   "), "example 1, de: an empty text"),
    (("one two three four five six", "x"), "example 1, en: more than data.longest=5 words"),
    (("a", b"\xe4"), "example 1, de: no UTF-8"),
    (("a", "b\nc"), "example 1, de: more than one line"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Return the directory of a prepared dataset."""
    faulty = {f"faulty_{i}": [PAIRS[0], pair] for i, (pair, _) in enumerate(FAULTS)}
    return prepare(tmp_path_factory.mktemp("tfds"), {"train": PAIRS, "test": PAIRS[:1], **faulty})


@pytest.fixture
def config(directory):
    splits = {"train": "train", "validation": "train[:2]", "test": "test"}
    tree = {"path": str(directory.parents[2]), "dataset": NAME, "splits": splits, "longest": 5}
    return data_part("tfds", tree)


def read(config, split, **changes):
    return [pair[:2] for pair in load_split(changed(config, changes), split, None)]


def test_splits_and_slices_are_read_in_both_directions(config):
    assert [read(config, split) for split in ("train", "validation", "test")] == [
        PAIRS, PAIRS[:2], PAIRS[:1]
    ]  # fmt: skip
    other = {"source": "de", "target": "en", "dataset": f"{NAME}:1.0.0"}
    assert read(config, "test", **other) == [PAIRS[0][::-1]]


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_invalid_example_raises_or_is_dropped_with_a_message(number, config, capsys):
    config = changed(config, {"splits.train": f"faulty_{number}"})
    with pytest.raises(UsageError, match=f"^{NAME}, faulty_{number}, {FAULTS[number][1]}; data.fa"):
        read(config, "train")
    config = changed(config, {"faults": "drop"})
    assert read(config, "train") == PAIRS[:1]
    assert "train: 1 of 2 pairs left out: " in capsys.readouterr().err
    config = changed(config, {"splits.train": f"faulty_{number}[1:]"})
    with pytest.raises(UsageError, match="the train split of the tfds data has no pairs"):
        read(config, "train")


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("source", "eng", "data.source must be one of de, en, got 'eng'; did you mean 'en'"),
        (
            "splits.train",
            "tets",
            "splits.train='tets' is no split of captions/en_de, nor a part",
        ),
        ("splits.train", "train[:9]", r"one, which has train \(3\), test \(1\)"),
        ("dataset", f"{NAME}:2.0.0", r"`tfds build .*de:2\.0\.0 --data_dir=.* --file_format=array"),
        ("path", "nowhere", f"data.dataset={NAME} is not prepared in nowhere: with TensorFlow, `t"),
    ],
)
def test_usage_error(config, field, value, sentence):
    with pytest.raises(ValueError, match=sentence):
        read(config, "train", **{field: value})


def test_format_that_needs_tensorflow_raises_with_the_remedy(config, tmp_path):
    info = prepare(tmp_path, {"train": PAIRS}) / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    config = changed(config, {"path": str(tmp_path)})
    with pytest.raises(ValueError, match=r"1\.0\.0 is prepared as tfrecord: .* --out_file_format"):
        read(config, "test")


def test_missing_file_raises(config, tmp_path):
    (file,) = prepare(tmp_path, {"train": PAIRS, "test": PAIRS}).glob("*-train.*")
    file.unlink()
    config = changed(config, {"path": str(tmp_path)})
    with pytest.raises(UsageError, match=f"1.0.0 cannot be read: .*{file.name}"):
        read(config, "train")


def test_newest_complete_version_is_used(config, tmp_path):
    for version, pairs in (("9.0.0", PAIRS[:1]), ("10.0.0", PAIRS), ("11.0.0.part", PAIRS[:2])):
        written = prepare(tmp_path, {"train": pairs, "test": PAIRS})
        written.rename(written.with_name(version))
    config = changed(config, {"path": str(tmp_path)})
    assert read(config, "train") == PAIRS

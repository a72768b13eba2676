"""TFDS datasets by name: prepared ones are read, others raise one sentence."""

import pytest

from experiments.errors import UsageError
from tests.experiments.data.corpora import changed, data_part, load_split
from tests.experiments.data.prepared import NAME, prepare

PAIRS = [("a dog", "ein Hund"), ("two dogs", "zwei Hunde"), ("naïve", "naïf")]
FAULTS = [("", "nichts"), ("a", b"\xe4"), ("a", "b\nc")]
SENTENCES = ["example 1, en: an empty text", "example 2, de: no UTF-8", "3, de: more than one line"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Return the directory of a prepared dataset."""
    splits = {"train": PAIRS, "test": PAIRS[:1], "faulty": [PAIRS[0], *FAULTS]}
    return prepare(tmp_path_factory.mktemp("tfds"), splits)


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


def test_invalid_example_raises_or_is_dropped_with_a_message(config, capsys):
    for start, sentence in enumerate(SENTENCES, start=1):
        faulty = changed(config, {"splits.train": f"faulty[{start}:]"})
        sentence = sentence.replace(str(start), "0")  # numbers are those of the part
        with pytest.raises(UsageError, match=f"{sentence}; data.faults=drop"):
            read(faulty, "train")
    assert read(config, "train", **{"splits.train": "faulty", "faults": "drop"}) == PAIRS[:1]
    assert capsys.readouterr().err.count("train: 1 of 4 pairs left out: ") == 3


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("source", "eng", "data.source must be one of de, en, got 'eng'; did you mean 'en'"),
        ("splits.train", "tets", "splits.train='tets': Unknown split 'tets'"),
        ("dataset", f"{NAME}:2.0.0", r"`tfds build .*de:2\.0\.0 --data_dir=.* --file_format=array"),
        ("path", "nowhere", f"data.dataset={NAME} is not prepared in nowhere: with TensorFlow, `t"),
    ],
)
def test_usage_error(config, field, value, sentence):
    with pytest.raises(ValueError, match=sentence):
        read(config, "train", **{field: value})


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

"""Corpora: parallel text, CSV files, prepared datasets of TFDS; their forms, faults and errors."""

import codecs
import gzip
import itertools
import re

import pytest

from experiments.data.source import Splits
from experiments.errors import UsageError
from tests.experiments.data.corpora import changed, data_part, load_split
from tests.experiments.data.prepared import NAME, prepare

PAIRS = [("a dog", "ein Hund"), ("two\u2028dogs", "zwei\x0cK\u0085fer")]  # no line ends
TEXT = 'label,text\nyes,"a good, long\nfilm"\nno,"a ""bad"" one"\n'
SPLITS = ("train", "validation", "test")
REVIEWS = [("a good, long film", "yes"), ('a "bad" one', "no")]


def write(folder, form, pairs=PAIRS, stem="train"):
    """Write pairs as two files, or as one if the form begins with "tsv"."""
    if form.startswith("tsv"):
        contents = {"tsv": map("\t".join, pairs)}
    else:
        contents = dict(zip(("en", "de"), zip(*pairs, strict=True), strict=True))
    for end, lines in contents.items():
        text = "\n".join(lines).encode()
        if form.endswith("gz"):
            (folder / f"{stem}.{end}.gz").write_bytes(gzip.compress(text))
        else:
            (folder / f"{stem}.{end}").write_bytes(text + b"\n")


@pytest.fixture
def parallel(tmp_path):
    return data_part("parallel", {"path": str(tmp_path), "longest": 5})


def read(config, split="train", **changes):
    return [pair[:2] for pair in load_split(changed(config, changes), split, None)]


@pytest.mark.parametrize("form", ["plain", "gz", "tsv", "tsv.gz"])
def test_every_form_is_read(form, parallel, tmp_path):
    write(tmp_path, form)
    assert read(parallel) == PAIRS
    if form == "plain":  # a mark and line ends of other systems are left out
        path = tmp_path / "train.en"
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes().replace(b"\n", b"\r\n"))
        assert read(parallel) == PAIRS


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ((b"", b"nichts"), "train.en, line 2: an empty text"),
        ((b"1 2 3 4 5 6", b"viel"), "train.en, line 2: more than data.longest=5 words"),
        ((b"w\0o\0r\0d\0", b"Wort"), "train.en, line 2: a NUL, which is no text"),
        ((b"beetle", b"K\xe4fer"), "train.de, line 2: no UTF-8"),
    ],
)
def test_invalid_line_raises_or_is_dropped_with_a_message(
    pair, sentence, parallel, tmp_path, capsys
):
    for language, line in zip(("en", "de"), pair, strict=True):
        (tmp_path / f"train.{language}").write_bytes(b"one\n" + line + b"\n\xef\xbf\xbd\n")
    with pytest.raises(UsageError, match=f"{sentence}; data.faults=drop"):
        read(parallel)
    assert read(parallel, faults="drop") == [("one", "one"), ("\ufffd", "\ufffd")]
    assert "train: 1 of 3 pairs left out" in (printed := capsys.readouterr().err)
    assert re.search(r", first in .*train\.(en|de), line 2$", printed.strip())


@pytest.mark.parametrize(
    ("name", "files", "sentence"),
    [
        ("parallel", {"en": "a"}, r"no .*train.en and .*de and no .*tsv, .* --config.data.files"),
        ("parallel", {"en": "", "de": "a\nb"}, r"equally many .* not .*\.en 0 and .*train\.de 2"),
        ("parallel", {"tsv": "a\tb\tc"}, r"train\.tsv, line 1: 3 columns between tabs, not 2"),
        ("parallel", {"en.gz": "no archive", "de": "a"}, r"train\.en\.gz cannot be read"),
        ("csv", {"csv": "text,stars\na,1\n"}, "data.target='label' must be one .* text, stars"),
        ("csv", {"csv": "text,label\na film, good,yes\n"}, "line 2, .*: 3 fields, not 2; .*s=drop"),
        ("csv", {"csv": 'text,label\na,no\n"bad,no\n'}, "csv: the row after line 2 cannot be read"),
        ("csv", {"csv": "text,label\n\xff,yes\n"}, "csv cannot be read: .* decode byte 0xff"),
    ],
)
def test_files_that_cannot_be_used_raise(name, files, sentence, tmp_path):
    for end, text in files.items():
        (tmp_path / f"train.{end}").write_bytes(text.encode("latin-1"))
    with pytest.raises((UsageError, ValueError), match=sentence):
        read(data_part(name, {"path": str(tmp_path)}))


def test_no_folder_and_no_pair_that_is_left_raise(parallel, tmp_path):
    with pytest.raises(ValueError, match=r"parallel needs a folder: --config\.data\.path=F"):
        read(parallel, path="")
    write(tmp_path, "tsv", [("", "")])
    with pytest.raises(UsageError, match="the train split of the parallel data has no pairs"):
        read(parallel, faults="drop")


def test_one_file_is_split(parallel, tmp_path, capsys):
    pairs = [(f"{i} dogs", f"{i} Hunde") for i in range(50)]
    for form, stem, path in (("plain", "mine", "mine"), ("tsv.gz", "one", "one.tsv.gz")):
        write(tmp_path, form, pairs, stem)
        splits = [read(parallel, name, path=str(tmp_path / path)) for name in SPLITS]
        assert sorted(itertools.chain(*splits)) == sorted(pairs)
        assert splits[1:] == [pairs[9::20], pairs[19::20]]
        assert capsys.readouterr().err.strip().endswith("train 45, validation 3, test 2")
    write(tmp_path, "tsv", pairs[:19], "few")
    with pytest.raises(UsageError, match=r"few.* has 19 pairs, and at least 20 can be split"):
        read(parallel, path=str(tmp_path / "few"))


def of_csv(folder, **fields):
    return data_part("csv", {"path": str(folder), "longest": 10**6, **fields})


def test_columns_are_found_by_name(tmp_path):
    content = codecs.BOM_UTF8 + TEXT.replace("\n", "\r\n").encode()
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress(content))
    assert read(of_csv(tmp_path)) == REVIEWS
    assert read(of_csv(tmp_path, source="label", target="text")) == [row[::-1] for row in REVIEWS]


def test_text_alone_needs_no_target_and_is_read_again_only_if_it_changed(tmp_path):
    file, cache = tmp_path / "train.csv", tmp_path / "cache"
    file.write_text("text\na film\n")

    def store():
        return Splits(of_csv(tmp_path), cache, has_targets=False)["train"]

    inode = store().path.stat().st_ino
    assert store().path.stat().st_ino == inode
    file.write_text("text\ntwo films\n")
    assert [*store()] == [("two films", "", "")]


@pytest.fixture(scope="module")
def of_tfds(tmp_path_factory):
    """Return the config of a prepared dataset, of which two examples have faults."""
    faulty = [PAIRS[0], ("a", "b\nc"), ("a", b"\xe4")]
    folder = tmp_path_factory.mktemp("tfds")
    prepare(folder, {"train": PAIRS, "test": PAIRS[:1], "faulty": faulty})
    splits = {"train": "train", "validation": "train[1:]", "test": "test"}
    return data_part("tfds", {"path": str(folder), "dataset": NAME, "splits": splits})


def test_splits_and_slices_are_read_in_both_directions(of_tfds):
    assert [read(of_tfds, split) for split in SPLITS] == [PAIRS, PAIRS[1:], PAIRS[:1]]
    other = {"source": "de", "target": "en", "dataset": f"{NAME}:1.0.0"}
    assert read(of_tfds, "test", **other) == [PAIRS[0][::-1]]
    assert read(of_tfds, **{"splits.train": "faulty", "faults": "drop"}) == PAIRS[:1]


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("splits.train", "faulty", "example 1, de: more than one line; data.faults=drop"),
        ("splits.train", "faulty[2:]", "example 0, de: no UTF-8; data.faults=drop"),
        ("splits.train", "tets", "splits.train='tets': Unknown split 'tets'"),
        ("source", "eng", "data.source must be one of de, en, got 'eng'; did you mean 'en'"),
        ("dataset", f"{NAME}:2.0.0", r"`tfds build .*de:2\.0\.0 --data_dir=.* --file_format=array"),
        ("path", "nowhere", f"data.dataset={NAME} is not prepared in nowhere: with TensorFlow, `t"),
    ],
)
def test_dataset_of_tfds_that_cannot_be_used_raises(of_tfds, field, value, sentence):
    with pytest.raises((UsageError, ValueError), match=sentence):
        read(of_tfds, **{field: value})


def test_newest_complete_version_is_used_and_a_missing_file_raises(of_tfds, tmp_path):
    for version, pairs in (("9.0.0", PAIRS[:1]), ("10.0.0", PAIRS), ("11.0.0.part", PAIRS[:1])):
        written = prepare(tmp_path, {"train": pairs, "test": PAIRS})
        written.rename(written.with_name(version))
    assert read(of_tfds, path=str(tmp_path)) == PAIRS
    (file,) = tmp_path.glob("*/*/10.0.0/*-train.*")
    file.unlink()
    with pytest.raises(UsageError, match=f"10.0.0 cannot be read: .*{file.name}"):
        read(of_tfds, path=str(tmp_path))

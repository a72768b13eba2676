"""CSV files: quotes, compression, and errors."""

import codecs
import gzip

import pytest

from experiments.data.source import Splits
from experiments.errors import UsageError
from tests.experiments.data.corpora import data_part, load_split

TEXT = 'label,text\nyes,"a good, long\nfilm"\nno,"a ""bad"" one"\n'
PAIRS = [("a good, long film", "yes"), ('a "bad" one', "no")]


def test_a_folder_is_needed():
    with pytest.raises(ValueError, match=r"csv needs a folder: --config\.data\.path=FOLDER"):
        read("")


def read(folder, **fields):
    config = data_part("csv", {"path": str(folder), **fields})
    return [pair[:2] for pair in load_split(config, "train", None)]


@pytest.mark.parametrize(
    "name, content",
    [
        ("train.csv", TEXT.encode()),
        ("train.csv", codecs.BOM_UTF8 + TEXT.replace("\n", "\r\n").encode()),
        ("train.csv.gz", gzip.compress(TEXT.encode(), mtime=0)),
    ],
)
def test_columns_are_found_by_name(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert read(tmp_path) == PAIRS
    assert read(tmp_path, source="label", target="text") == [pair[::-1] for pair in PAIRS]


@pytest.mark.parametrize(
    "content, sentence",
    [
        (b"text,stars\na,1\n", r"data.target='label' is no column of .*, which has text, stars"),
        (b"text,label,text\na,1,b\n", r"data.source='text' is the name of 2 columns of .*train"),
        (b"", r"train\.csv is empty"),
        (b"text,label\n,yes\n", "line 2, column 'text': an empty field; data.faults=drop leaves"),
        (b"text,label\na film\n", "line 2, column 'label': a missing field; data.faults=drop"),
        (b"text,label\na film, a good one,yes\n", "line 2: 3 fields, not 2; data.faults=drop"),
        (b'text,label\na,no\n"bad,no\n', "csv: the row after line 2 cannot be read, check its q"),
        (b'text,label\n"good" film,yes\n', "csv: the row after line 1 cannot be read, check its q"),
        (b"text,label\n\xff,yes\n", "cannot be read: 'utf-8' codec can't decode byte 0xff"),
        (b"text,label\n", "the train split of the csv data has no pairs"),
        (
            None,
            "has no train.csv for the train split, plain or as .gz: name it by",
        ),
    ],
)
def test_file_that_cannot_be_used_raises(content, sentence, tmp_path):
    if content is not None:
        (tmp_path / "train.csv").write_bytes(content)
    with pytest.raises((UsageError, ValueError), match=sentence):
        read(tmp_path)


def test_text_alone_needs_no_target_and_is_read_again_only_if_it_changed(tmp_path):
    file, cache = tmp_path / "train.csv", tmp_path / "cache"
    file.write_text("text\na film\n")
    config = data_part("csv", {"path": str(tmp_path)})

    def store():
        return Splits(config, cache, has_targets=False)["train"]

    inode = store().path.stat().st_ino
    assert store().path.stat().st_ino == inode
    file.write_text("text\ntwo films\n")
    assert [*store()] == [("two films", "", "")]

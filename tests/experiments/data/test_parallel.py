"""Parallel text from files: file names, formats and errors."""

import codecs
import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.config.data import SUBWORDS, TextPart
from experiments.data.examples import SentencePair
from experiments.data.subwords import STAND_IN, Subwords
from experiments.errors import UsageError
from tests.experiments.data.corpora import changed, data_part, learn, load_split

CHARACTERS = st.characters(exclude_categories=("Cs",), exclude_characters=STAND_IN)
PAIRS = [("a dog", "ein Hund"), ("two dogs", "zwei Hunde")]


@pytest.fixture
def write(tmp_path):
    """Write a split in one of the supported formats."""

    def write(form: str, sides=PAIRS, stem: str = "train"):
        columns = zip(*sides, strict=True)
        if form.startswith("tsv"):
            contents = {f"{stem}.tsv": "\n".join("\t".join(pair) for pair in sides)}
        else:
            sides = zip(("en", "de"), columns, strict=True)
            contents = {f"{stem}.{language}": "\n".join(lines) for language, lines in sides}
        for name, text in contents.items():
            if form.endswith("gz"):
                (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
            else:
                (tmp_path / name).write_bytes(f"{text}\n".encode())

    return write


@pytest.fixture
def config(tmp_path):
    files = {"train": "train", "validation": "train", "test": "train"}
    return data_part("parallel", {"path": str(tmp_path), "files": files, "longest": 5})


@pytest.mark.parametrize("form", ["plain", "gz", "tsv", "tsv.gz"])
def test_every_format_is_read(write, config, form):
    write(form)
    assert [pair[:2] for pair in load_split(config, "train", None)] == PAIRS


def test_one_side_may_be_compressed(write, config, tmp_path):
    write("plain")
    write("gz")
    (tmp_path / "train.de").unlink()
    (tmp_path / "train.en.gz").unlink()
    assert [pair[:2] for pair in load_split(config, "train", None)] == PAIRS


FAULTS = [
    (("", "nichts"), "train.en, line 2: an empty line"),
    (("something", "   "), "train.de, line 2: an empty line"),
    (("one two three four five six", "viel"), "train.en, line 2: more than data.longest=5 words"),
    (("one\rtwo", "eins"), "train.en, line 2: more than one line"),
    (("w\0o\0r\0d\0", "Wort"), "train.en, line 2: a NUL, which is no text"),
]


@pytest.mark.parametrize("pair, sentence", FAULTS)
def test_invalid_line_raises_or_is_dropped_with_a_message(write, config, pair, sentence, capsys):
    write("plain", [PAIRS[0], pair, PAIRS[1]])
    with pytest.raises(UsageError, match=f"{sentence}; data.faults=drop leaves such pairs out"):
        load_split(config, "train", None)
    config = changed(config, {"faults": "drop"})
    assert [pair[:2] for pair in load_split(config, "train", None)] == PAIRS
    assert "train: 1 of 3 pairs left out" in (told := capsys.readouterr().err)
    assert re.search(r", first in .*train\.(en|de|tsv), line 2$", told.strip())


def test_invalid_utf8_is_a_fault(write, config, tmp_path, capsys):
    write("plain")
    (tmp_path / "train.de").write_bytes("ein Hund\nzwei Käfer\n".encode("latin-1"))
    with pytest.raises(UsageError, match=r"train\.de, line 2: no UTF-8"):
        load_split(config, "train", None)
    config = changed(config, {"faults": "drop"})
    assert len(load_split(config, "train", None)) == 1
    assert "no UTF-8" in capsys.readouterr().err


def test_byte_order_mark_and_line_ends_are_removed(write, config, tmp_path):
    write("plain")
    path = tmp_path / "train.en"
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes().replace(b"\n", b"\r\n"))
    assert [pair[:2] for pair in load_split(config, "train", None)] == PAIRS


@pytest.mark.parametrize("content", [b"", codecs.BOM_UTF8])
def test_empty_file_raises(write, config, tmp_path, content):
    write("plain")
    (tmp_path / "train.en").write_bytes(content)
    with pytest.raises(UsageError, match=r"train\.en 0 and .*train\.de 2"):
        load_split(config, "train", None)


def test_split_in_two_formats_raises(write, config):
    write("plain")
    write("tsv.gz")
    with pytest.raises(ValueError, match=r"train split is there more than once, in .*en and .*gz"):
        load_split(config, "train", None)


def test_three_columns_raise(write, config):
    write("tsv", [("a", "b", "c")])
    with pytest.raises(UsageError, match=r"train\.tsv, line 1: 3 columns, not 2"):
        load_split(config, "train", None)


def test_files_of_unequal_length_always_raise(write, config, tmp_path):
    write("plain")
    (tmp_path / "train.de").write_text("ein Hund\n")
    config = changed(config, {"faults": "drop"})
    with pytest.raises(UsageError, match=r"equally many lines, not .*train\.en 2"):
        load_split(config, "train", None)


def test_damaged_archive_raises(write, config, tmp_path):
    write("gz")
    (tmp_path / "train.en.gz").write_bytes(b"no archive")
    with pytest.raises(UsageError, match=r"train\.en\.gz cannot be read"):
        load_split(config, "train", None)


@pytest.mark.parametrize(
    "field, value, sentence",
    [
        (
            "files.test",
            "tset",
            "no tset.tsv for the test split, plain or as .gz: name it by --config.data.files.test=",
        ),
        ("target", "fr", "has no train.en and train.fr and no train.tsv for the test split"),
    ],
)
def test_usage_error(write, config, field, value, sentence):
    write("plain")
    config = changed(config, {field: value})
    with pytest.raises(ValueError, match=sentence):
        load_split(config, "test", None)


@pytest.mark.parametrize("kind", SUBWORDS)
def test_decode_inverts_encode_for_every_kind_of_subwords(write, config, kind, tmp_path):
    write("plain", [*PAIRS, ("two  dogs", "zwei  Hunde")] * 3)
    settings = TextPart(kind=kind, size=269 if kind == "word" else 278)
    pairs = load_split(config, "train", None)
    tokenizers = learn(Subwords(), settings, pairs, tmp_path)
    texts = [side for pair in pairs for side in pair[:2]]
    texts += ["ein  Hund ", "naïve 犬", "", " ", " 犬 Hund", "_▁ ▁", "<unk> </s> <0x41>"]

    def comes_back(text):
        assert tokenizers.target.decode(tokenizers.target.encode(text)) == text

    for text in texts:
        comes_back(text)
    given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\ufdd0")))(
        comes_back
    )()
    again = learn(Subwords(), settings, pairs, tmp_path / "elsewhere")
    assert again == tokenizers  # to the byte


def test_subwords_are_learned_from_long_and_unusual_lines(tmp_path):
    settings = TextPart(kind="char", size=300)
    for line in ("Ω" * 5_000, "▅Ω"):
        tokens = learn(Subwords(), settings, [SentencePair("a b", line)], tmp_path).source
        assert tokens.encode("Ω") == tokens.encode("Ω" * 2)[:-1]  # one token, not bytes
        assert tokens.decode(tokens.encode("▅Ω a")) == "▅Ω a"


def test_too_many_subwords_raise(write, config, tmp_path):
    write("plain")
    text = TextPart(size=10_000)
    with pytest.raises(UsageError, match=r"size=10000 is more than the (\d+) .* at most \1$"):
        learn(Subwords(), text, load_split(config, "train", None), tmp_path)


def test_too_few_subwords_raise(write, config, tmp_path):
    write("plain")
    text = TextPart(size=262)
    with pytest.raises(UsageError, match=r"size=262 is less than the (\d+) .* at least \1$"):
        learn(Subwords(), text, load_split(config, "train", None), tmp_path)


def test_decode_inverts_encode_for_multi30k(config, real_data, tmp_path):
    files = {"files.validation": "validation", "files.test": "test_2016"}
    path = str(real_data("multi30k") / "tok")
    config = changed(config, {"path": path, "longest": 100, **files})
    splits = {split: load_split(config, split, None) for split in ("train", "validation", "test")}
    assert [len(pairs) for pairs in splits.values()] == [29_000, 1_014, 1_000]
    tokenizers = learn(Subwords(), TextPart(size=2_000), splits["train"], tmp_path)
    for pair in splits["test"]:
        for text in pair[:2]:
            assert tokenizers.target.decode(tokenizers.target.encode(text)) == text

"""Text as characters: random training windows, and validation windows with every label once."""

import numpy as np
import pytest

from experiments.data import text_file
from experiments.data.examples import SentencePair
from experiments.data.store import store_text
from experiments.data.text_file import CUTS, TextFileData, characters, lines, toy_text
from experiments.data.text_windows import FixedWindows, RandomWindows
from experiments.data.tokenizers import UNKNOWN_CHARACTER, Characters, CharacterTokenizer
from experiments.errors import UsageError

IDS = np.arange(101, 101 + 53, dtype=np.int32)


def data(**changes):
    return TextFileData(**{"sentences": 50} | changes)


def test_characters_and_ids():
    characters = CharacterTokenizer.of(["to be\n", "or not"])
    assert characters.characters == f"\n benort{UNKNOWN_CHARACTER}"
    assert len(characters) == 9
    ids = characters.encode("bet\n")
    assert ids == characters.read("bet\n") == [2, 3, 7, 0]
    assert characters.decode(ids) == "bet\n"
    assert characters.as_bytes().count(b"\n") == 1


@pytest.mark.parametrize("separator", ["\r", "\u2028", "\u0085", '"'])
def test_unusual_line_separators_survive_saving(separator, tmp_path):
    text = store_text(tmp_path / "cache", lambda: [SentencePair(f"a{separator}b\n")])
    first, learned = (Characters().learn(None, text, tmp_path / "cache", (0,)) for _ in range(2))
    assert first == learned
    tmp_path /= "workdir"
    tmp_path.mkdir()
    learned.keep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["characters.source.json"]
    assert Characters().load(tmp_path, (0,)) == learned
    (tmp_path / "characters.source.json").write_text('"abca"')
    with pytest.raises(UsageError, match="cannot be read: a list of characters contains each once"):
        Characters().load(tmp_path, (0,))


def test_unknown_character_raises():
    characters = CharacterTokenizer.of(["to be"])
    assert characters.decode(characters.encode("bez,t")) == f"be{UNKNOWN_CHARACTER * 2}t"
    with pytest.raises(ValueError, match="the character 'z' is not in the text that was learned"):
        characters.read("bez")


def sources(read, split, **changes):
    return [pair.source for pair in read(data(**changes), split, None)]


def test_splits_are_the_beginning_and_the_end_of_a_text(tmp_path, monkeypatch):
    monkeypatch.setattr(text_file, "CHUNK", 7)
    (tmp_path / "text").write_text("0123456789" * 4)
    parts = {split: sources(characters, split, path=str(tmp_path / "text")) for split in CUTS}
    assert "".join(parts["train"]) == "0123456789" * 3 + "012345"
    assert {len(part) for part in parts["train"]} == {7, 1}
    assert (parts["validation"], parts["test"]) == (["67"], ["89"])


@pytest.mark.parametrize("chunk", [1, 2, 3, 64])
def test_characters_of_several_bytes_are_never_split(chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(text_file, "CHUNK", chunk)
    (tmp_path / "text").write_bytes("é€𝄞a\r\n".encode() * 7)
    path = str(tmp_path / "text")
    assert "".join("".join(sources(characters, split, path=path)) for split in CUTS) == "é€𝄞a\n" * 7


def test_each_line_of_a_text_is_in_one_split(tmp_path):
    text = [f"line {number} é" for number in range(40)]
    (tmp_path / "text").write_text("\n\n".join(text))
    parts = [sources(lines, split, path=str(tmp_path / "text")) for split in CUTS]
    assert [line for part in parts for line in part] == text
    assert [len(part) for part in parts] == [36, 2, 2]


def test_a_folder_has_a_file_for_each_split(tmp_path):
    for split in CUTS:
        (tmp_path / f"{split}.txt").write_text(f"{split}\n")
    assert [sources(lines, split, path=str(tmp_path)) for split in CUTS] == [[one] for one in CUTS]
    assert sources(characters, "test", path=str(tmp_path)) == ["test\n"]
    (tmp_path / "train.txt").unlink()
    with pytest.raises(ValueError, match=r"/train.txt is not there: name a text file, a folder of"):
        sources(lines, "train", path=str(tmp_path))


@pytest.mark.parametrize("read", [characters, lines])
def test_byte_order_mark_is_left_out(read, tmp_path):
    for split in CUTS:
        (tmp_path / f"{split}.txt").write_bytes(f"\ufeff{split}\r\n".encode())
    found = [sources(read, split, path=str(tmp_path)) for split in CUTS]
    assert [text.strip() for text, *_ in found] == [*CUTS]


@pytest.mark.parametrize("source", [text_file.CHARACTERS, text_file.LINES])
def test_text_has_another_name_after_a_change(source, tmp_path):
    path = tmp_path / "text"
    path.write_text("one\n")
    names = [source.name(data(path=str(path)))]
    assert names == [source.name(data(path=str(path)))]
    path.write_text("one\ntwo\n")
    names.append(source.name(data(path=str(path))))
    names += [source.name(data(path=str(tmp_path))), source.name(data())]
    (tmp_path / "train.txt").write_text("one\n")
    names += [source.name(data(path=str(tmp_path))), source.name(data(seed=1))]
    assert len({*names}) == 6


def test_text_of_too_few_lines_raises(tmp_path):
    (tmp_path / "text").write_text("one line\n")
    with pytest.raises(ValueError, match="has no line for the validation split: name a file of mo"):
        sources(lines, "validation", path=str(tmp_path / "text"))


def test_windows_begin_anywhere_and_labels_are_the_next_ids():
    windows = RandomWindows(IDS, context=7, size=5, seed=3)
    batches = [windows[i] for i in range(200)]
    for batch in batches:
        assert batch.inputs.shape == batch.labels.shape == batch.counted.shape == (5, 7)
        np.testing.assert_array_equal(batch.labels, batch.inputs + 1)
        np.testing.assert_array_equal(batch.inputs, batch.inputs[:, :1] + np.arange(7))
        assert batch.counted.all()
    starts = {int(start) for batch in batches for start in batch.inputs[:, 0]}
    assert starts == {*range(101, 101 + 53 - 7)}


def test_batch_depends_on_seed_and_index_only():
    def inputs(seed, index):
        return RandomWindows(IDS, context=7, size=5, seed=seed)[index].inputs.tolist()

    assert inputs(1, 4) == inputs(1, 4)
    assert inputs(1, 4) != inputs(1, 5)
    assert inputs(1, 4) != inputs(2, 4)


@pytest.mark.parametrize("length", [8, 9, 14, 15, 29, 36, 53])
def test_fixed_windows_count_every_label_once(length):
    batches = FixedWindows(IDS[:length], context=7, size=3)
    assert {batch.inputs.shape for batch in batches} == {(3, 7)}
    counted = [label for batch in batches for label in batch.labels[batch.counted].tolist()]
    assert counted == IDS[1:length].tolist()
    for batch in batches:
        np.testing.assert_array_equal(batch.labels, batch.inputs + 1)


def test_default_text_is_the_toy_language():
    text = toy_text(data())
    assert text == "".join("".join(sources(characters, split)) for split in CUTS)
    assert text != toy_text(data(seed=1))
    assert len(text.splitlines()) == 50
    assert text.endswith("\n")
    assert {*text} <= {*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ- \n"}


@pytest.mark.parametrize("read", [characters, lines])
@pytest.mark.parametrize(
    "content, words",
    [
        (None, "is not there: name a text file, a folder of train.txt"),
        (b"", "is empty"),
        (b"\xff\xfe", "cannot be read as UTF-8 text"),
    ],
)
def test_file_without_text_raises(read, content, words, tmp_path):
    path = tmp_path / "input.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        sources(read, "train", path=str(path))


def test_tiny_shakespeare(real_data):
    path = real_data("tiny_shakespeare") / "input.txt"
    parts = ["".join(sources(characters, split, path=str(path))) for split in CUTS]
    assert "".join(parts) == path.read_text()
    assert [len(part) for part in parts] == [1_003_854, 55_770, 55_770]
    learned = CharacterTokenizer.of(parts[:1])
    assert len(learned) == 65 + 1
    assert learned.decode(learned.read(parts[2])) == parts[2]

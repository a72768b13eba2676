"""Text of files: by characters and by lines, without loss at the cuts between splits."""

import pytest

from experiments.data import text_file
from experiments.data.text_file import CUTS, TextFileData, characters, lines, toy_text


def data(**changes):
    return TextFileData(**{"sentences": 50} | changes)


def sources(read, split, **changes):
    return [pair.source for pair in read(data(**changes), split, None)]


@pytest.mark.parametrize("chunk", [1, 3, 64])
@pytest.mark.parametrize("text", ["é€𝄞a\r\n", "\r\n", "\r", "a\r\r\n\u2028\x85", "\ufeffb"])
def test_text_is_whole_in_chunks_and_splits_of_any_size(text, chunk, tmp_path, monkeypatch):
    """Neither a character nor a line end is cut; a mark at the beginning alone is left out."""
    monkeypatch.setattr(text_file, "CHUNK", chunk)
    for number in range(1, 30):
        (tmp_path / "text").write_bytes(b"\xef\xbb\xbf" + (text * number).encode())
        parts = [sources(characters, split, path=str(tmp_path / "text")) for split in CUTS]
        assert "".join(map("".join, parts)) == (text * number).replace("\r\n", "\n")
        assert all(len(part) <= chunk + 1 for parts in parts for part in parts)


def test_each_line_of_a_text_is_in_one_split(tmp_path):
    text = [f"\ufeffline\u2028{number} é" for number in range(40)]
    (tmp_path / "text").write_text("\ufeff" + "\r\n\n".join(text), newline="")
    parts = [sources(lines, split, path=str(tmp_path / "text")) for split in CUTS]
    assert [line for part in parts for line in part] == text
    assert [len(part) for part in parts] == [36, 2, 2]


def test_a_folder_has_a_file_for_each_split(tmp_path):
    for split in CUTS:
        (tmp_path / f"{split}.txt").write_text(f"\ufeff{split}\n")
    for read, end in ((characters, "\n"), (lines, "")):
        assert [sources(read, split, path=str(tmp_path)) for split in CUTS] == [
            [split + end] for split in CUTS
        ]


def test_text_has_another_name_after_a_change(tmp_path):
    path, name = tmp_path / "text", text_file.LINES.name
    names = [name(data()), name(data(seed=1))]
    for text in ("one\n", "one\ntwo\n"):
        path.write_text(text)
        names.append(name(data(path=str(path))))
        assert names[-1] == name(data(path=str(path)))
    assert len({*names}) == 4


def test_default_text_is_the_toy_language():
    text = toy_text(data())
    assert text == "".join("".join(sources(characters, split)) for split in CUTS)
    assert text != toy_text(data(seed=1))
    assert text.count("\n") == 50


@pytest.mark.parametrize("read", [characters, lines])
def test_file_without_text_raises(read, tmp_path):
    path = tmp_path / "input.txt"
    with pytest.raises(ValueError, match=r"is not there: name a text file, a folder of train\.t"):
        sources(read, "train", path=str(path))
    for content in (b"", b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"/input\.txt cannot be read as UTF-8 text"):
            sources(read, "train", path=str(path))

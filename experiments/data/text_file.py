"""Text of a file, of a folder, or of the toy language: by characters or line by line.

The beginning of one file is for training, its end for validation and tests. A folder has a file for
each split: train.txt, validation.txt and test.txt. A byte order mark is left out. The file is
memory-mapped.
"""

from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from experiments.config.build import option
from experiments.config.parts import RandomData
from experiments.data.corpora import name_of_files
from experiments.data.sequences import generator
from experiments.data.source import Source
from experiments.data.subwords import Subwords
from experiments.data.tokenizers import Characters, SentencePair
from experiments.data.toy import ToyTranslation, sample
from experiments.registry import dataset

CHUNK = 4_096  # bytes of an example of a running text; the store reads as many examples at once
CUTS = {"train": (0.0, 0.9), "validation": (0.9, 0.95), "test": (0.95, 1.0)}
KINDS = "a text file, a folder of train.txt, validation.txt and test.txt, or '' for toy sentences"


def characters(config: "TextFileData", split: str, _: Path) -> Iterator[SentencePair]:
    """Yield a split in chunks that follow one another; a ValueError names a file without text."""
    with _bytes_of(config, split) as (text, *cuts):
        start, end = (_next_character(text, index) for index in cuts)
        decoder = getincrementaldecoder("utf-8" if start else "utf-8-sig")()
        rest = ""
        for index in range(start, end, CHUNK):
            stop = min(index + CHUNK, end)
            chunk = rest + decoder.decode(text[index:stop], final=stop == end)
            rest = "\r" if chunk.endswith("\r") and stop < end else ""
            yield SentencePair(chunk.removesuffix(rest).replace("\r\n", "\n"))


def lines(config: "TextFileData", split: str, _: Path) -> Iterator[SentencePair]:
    """Yield the lines of a split that are not blank; a ValueError names a file without any."""
    is_empty = True
    with _bytes_of(config, split) as (text, *cuts):
        start, end = (_next_line(text, index - 1) if index else 0 for index in cuts)
        while start < end:
            stop = _next_line(text, start)
            if line := text[start:stop].decode("utf-8" if start else "utf-8-sig").strip():
                yield SentencePair(line)
                is_empty = False
            start = stop
    if is_empty:
        raise ValueError(f"data.path={config.path} has no line for the {split} split: {KINDS}")


def toy_text(config: "TextFileData") -> str:
    """Return sentences of the toy language, one a line."""
    sentences = [pair.source for pair in sample(config.seed, config.sentences)]
    # Likely sentences are drawn first: without a shuffle the end would differ from the beginning.
    return "\n".join(generator(config.seed, "text").permutation(sentences).tolist()) + "\n"


@contextmanager
def _bytes_of(config: "TextFileData", split: str) -> Iterator[tuple[bytes | mmap, int, int]]:
    """Yield all bytes of a text, and the indices where a split begins and ends."""
    path, cut = Path(config.path), CUTS[split]
    if config.path and path.is_dir():
        path, cut = path / f"{split}.txt", (0.0, 1.0)
    try:
        if config.path:
            with path.open("rb") as file:
                if not path.stat().st_size:
                    raise ValueError("it is empty")
                text = mmap(file.fileno(), 0, access=ACCESS_READ)
        else:
            text = toy_text(config).encode()
        yield text, *(int(len(text) * share) for share in cut)
    except FileNotFoundError:
        raise ValueError(f"data.path={path} is not there: name {KINDS}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"data.path={path} cannot be read as UTF-8 text: {error}") from None


def _next_character(text: bytes | mmap, index: int) -> int:
    """Return the first index, from this one on, where a character or a line end begins."""
    while index < len(text) and text[index] & 0xC0 == 0x80:  # inside a character of UTF-8
        index += 1
    return index + (index > 0 and text[index - 1 : index + 1] == b"\r\n")


def _next_line(text: bytes | mmap, index: int) -> int:
    """Return the index after the line end at this index, or the first one after it."""
    return text.find(b"\n", index) + 1 or len(text)


@dataclass(frozen=True, kw_only=True)
class TextFileData(RandomData):
    """Base of the config of a text; of one file, the end is for validation and tests."""

    path: str = option("", KINDS)
    sentences: int = option(20_000, "sentences of the toy language", least=1)

    def list_files(self) -> list[Path]:
        """List the files of all splits; there are none of the toy language."""
        path = Path(self.path)
        files = [path / f"{split}.txt" for split in CUTS] if path.is_dir() else [path]
        return [file for file in files if self.path and file.is_file()]


def _name(config: TextFileData) -> str:
    return f"{name_of_files(config)} {ToyTranslation.VERSION}"


CHARACTERS = Source(characters, text=Characters(), is_running=True, name=_name)
LINES = Source(lines, text=Subwords(), may_split=True, name=_name)


@dataset(source=CHARACTERS, contains=("characters",))
@dataclass(frozen=True, kw_only=True)
class CharactersData(TextFileData):
    """A text, character by character."""

    name: str = "characters"


@dataset(source=LINES, contains=("text",))
@dataclass(frozen=True, kw_only=True)
class TextData(TextFileData):
    """A text, line by line, as subwords."""

    name: str = "text"

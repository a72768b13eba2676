"""Text of a file, of a folder, or of the toy language: by characters or line by line.

The beginning of one file is for training, its end for validation and tests. A folder has a file for
each split: train.txt, validation.txt and test.txt. A byte order mark is left out. At most one chunk
of the text is in memory.
"""

import io
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

from experiments.config.build import option
from experiments.config.data import RandomData
from experiments.data.fingerprint import name_of_files
from experiments.data.pairs import SentencePair
from experiments.data.sequences import generator
from experiments.data.source import Source
from experiments.data.subwords import Subwords
from experiments.data.tokenizers import Characters
from experiments.data.toy import ToyTranslation
from experiments.data.toy_language.corpus import sample
from experiments.registry import dataset

CHUNK = 4_096  # bytes of an example of a running text; the store reads as many examples at once
CUTS = {"train": (0.0, 0.9), "validation": (0.9, 0.95), "test": (0.95, 1.0)}


def characters(config: "TextFileData", split: str, cache: Path) -> Iterator[SentencePair]:
    """Yield a split in chunks that follow one another.

    Raises:
        ValueError: a file that cannot be read.
    """
    del cache
    with _opened(config, split) as (file, start, end):
        start, end = (_next_character(file, place) for place in (start, end))
        decoder = io.IncrementalNewlineDecoder(getincrementaldecoder("utf-8-sig")(), translate=True)
        file.seek(start)
        for place in range(start, end, CHUNK):
            chunk = file.read(min(CHUNK, end - place))
            yield SentencePair(decoder.decode(chunk, final=place + CHUNK >= end))


def lines(config: "TextFileData", split: str, cache: Path) -> Iterator[SentencePair]:
    """Yield the lines of a split that are not blank.

    Raises:
        ValueError: a file that cannot be read, or that has too few lines.
    """
    del cache
    with _opened(config, split) as (file, start, end):
        start, end = (_next_line(file, place) for place in (start, end))
        file.seek(start)
        is_empty = True
        while file.tell() < end:
            if text := file.readline().decode("utf-8-sig").strip():
                yield SentencePair(text)
                is_empty = False
        if is_empty:
            raise ValueError(
                f"data.path={config.path} has no line for the {split} split: name a file of more "
                "lines, or a folder of train.txt, validation.txt and test.txt"
            )


def toy_text(config: "TextFileData") -> str:
    """Return sentences of the toy language, one a line."""
    sentences = [pair.source for pair in sample(config.seed, config.sentences)]
    # Likely sentences are drawn first: without a shuffle the end would differ from the beginning.
    return "\n".join(generator(config.seed, "text").permutation(sentences).tolist()) + "\n"


@contextmanager
def _opened(config: "TextFileData", split: str) -> Iterator[tuple[BinaryIO, int, int]]:
    """Open the text of a split, with the places in bytes where the split begins and ends.

    Raises:
        ValueError: a file that is missing, empty or no text.
    """
    path, cut = Path(config.path), CUTS[split]
    if config.path and path.is_dir():
        path, cut = path / f"{split}.txt", (0.0, 1.0)
    try:
        with path.open("rb") if config.path else io.BytesIO(toy_text(config).encode()) as file:
            size = file.seek(0, io.SEEK_END)
            if not size:
                raise ValueError(f"data.path={path} is empty")
            yield file, *(int(size * share) for share in cut)
    except FileNotFoundError:
        raise ValueError(
            f"data.path={path} is not there: name a text file, a folder of train.txt, "
            "validation.txt and test.txt, or '' for sentences of the toy language"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"data.path={path} cannot be read as UTF-8 text: {error}") from None


def _next_character(file: BinaryIO, place: int) -> int:
    """Return the first place, from this one on, where a character begins or the file ends."""
    file.seek(place)
    while (byte := file.read(1)) and byte[0] & 0xC0 == 0x80:  # inside a character of UTF-8
        place += 1
    return place


def _next_line(file: BinaryIO, place: int) -> int:
    """Return the first place, from this one on, where a line begins or the file ends."""
    if place:
        file.seek(place - 1)
        file.readline()
        return file.tell()
    return 0


def _name(config: "TextFileData") -> str:
    """Name the text of a config: that of its files, or of the toy language."""
    path = Path(config.path)
    files = [path / f"{split}.txt" for split in CUTS] if path.is_dir() else [path]
    files = [file for file in files if config.path and file.is_file()]
    return name_of_files(files, CUTS, config, ToyTranslation.VERSION)


CHARACTERS = Source(characters, text=Characters(), is_running=True, name=_name)
LINES = Source(lines, text=Subwords(), may_split=True, name=_name)


@dataclass(frozen=True, kw_only=True)
class TextFileData(RandomData):
    """Base of the config of a text; of one file, the end is for validation and tests."""

    path: str = option(
        "", "a file, or a folder of train.txt, validation.txt, test.txt; '' for toy sentences"
    )
    sentences: int = option(20_000, "sentences of the toy language", least=1)


@dataset(source=CHARACTERS, contains=("characters",))
@dataclass(frozen=True, kw_only=True)
class CharactersData(TextFileData):
    """A text, character by character."""

    name: str = "characters"


@dataset(source=LINES, contains=("text",))
@dataclass(frozen=True, kw_only=True)
class TextData(TextFileData):
    """A text, line by line, as subwords."""

    is_shared: ClassVar[None] = None
    name: str = "text"

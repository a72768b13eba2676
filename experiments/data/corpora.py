"""Pairs in files of a user: how files are found and read, and which pairs have faults.

`data.faults` decides whether pairs with a fault are refused or left out; both are reported with
their file and line. The text becomes subwords, because a list of its words would be too long.
"""

import codecs
import glob
import gzip
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, NamedTuple

from experiments.config.build import option
from experiments.config.parts import Data
from experiments.data.source import Source
from experiments.data.subwords import Subwords
from experiments.data.tokenizers import SentencePair
from experiments.errors import UsageError

COMPRESSED = ".gz"


class Line(NamedTuple):
    """One side of a pair, or what is wrong with it."""

    origin: str  # file and line, or the like, for messages
    text: str  # blanks around it are removed later
    fault: str = ""  # a few words

    @classmethod
    def of(cls, origin: str, content: bytes) -> "Line":
        """Decode bytes as UTF-8."""
        try:
            return cls(origin, content.decode("utf-8"))
        except UnicodeDecodeError:
            return cls(origin, "", "no UTF-8")


@dataclass(frozen=True, kw_only=True)
class CorpusData(Data):
    """Base of the config of pairs in files, whose text is subwords."""

    path: str = option("", "folder of the data")
    source: str = option("en", "language that is read")
    target: str = option("de", "language that is written")
    tokenized: bool = option(False, "whether the text is tokenized: BLEU then counts its tokens")
    faults: str = option(
        "refuse",
        "or drop: pairs with an empty side, bad bytes, too many words",
        among=("refuse", "drop"),
    )
    longest: int = option(100, "words of the longest sentence", least=1)

    def lines(self, split: str) -> Iterator[tuple[Line, ...]]:
        """Yield both sides of every pair of a split; the source alone if `target` is ""."""
        raise NotImplementedError

    def list_files(self) -> list[Path]:
        """List the files of all splits; a split is read again if one of them changes.

        They are those in the folder `path` whose names begin with a name in `files`. Of a path that
        is no folder, they are those that begin with it.
        """
        path = Path(self.path)
        stems = [path / name for name in vars(self.files).values()] if path.is_dir() else [path]
        files = (file for stem in stems for file in stem.parent.glob(f"{glob.escape(stem.name)}*"))
        return [file for file in files if file.is_file()]


def load(config: CorpusData, split: str, _: Path) -> Iterator[SentencePair]:
    """Yield the pairs of a split that have no fault.

    Raises:
        UsageError: a fault, if those are refused; no pair that is left.
    """
    kept, dropped = 0, defaultdict[str, list[str]](list)
    for sides in config.lines(split):
        faults = [(fault, side.origin) for side in sides if (fault := _fault(side, config.longest))]
        if not faults:
            kept += 1
            yield SentencePair(*(side.text.strip() for side in sides))
            continue
        fault, origin = faults[0]
        if config.faults == "refuse":
            raise UsageError(f"{origin}: {fault}; data.faults=drop leaves it out")
        dropped[fault].append(origin)
    total = kept + sum(map(len, dropped.values()))
    for fault, origins in dropped.items():
        warn_dropped(split, len(origins), total, f"{fault}, first in {origins[0]}")
    if not kept:
        raise UsageError(f"the {split} split of the {config.name} data has no pairs")


def _fault(line: Line, longest: int) -> str:
    text = line.text.strip()
    if line.fault or not text:
        return line.fault or "an empty text"
    if "\n" in text:
        return "more than one line"
    if "\0" in text:
        return "a NUL, which is no text"
    return f"more than data.longest={longest} words" if len(text.split()) > longest else ""


def warn_dropped(split: str, number: int, total: int, why: str) -> None:
    """Print how many pairs of a split are left out."""
    print(f"{split}: {number:,} of {total:,} pairs left out: {why}", file=sys.stderr)


def name_of_files(config: CorpusData) -> str:
    """Name the text of a config with files: by all fields, and path, size and time of each file."""
    stats = [(str(path.resolve()), path.stat()) for path in sorted(config.list_files())]
    return f"{config} {[(path, at.st_size, at.st_mtime_ns) for path, at in stats]}"


CORPUS = Source(load, text=Subwords(), name=name_of_files)
CORPUS_OR_TEXT = replace(CORPUS, may_lack_target=True)


def find_files(stem: Path, forms: Sequence[Sequence[str]], hint: str = "") -> Sequence[Path]:
    """Return the files of the first form of a text that is there, each plain or compressed.

    Their names begin with `stem`; `forms` contains the ends of their names in each form.

    Raises:
        ValueError: no such files.
    """

    def present(end: str) -> Path | None:
        plain, compressed = Path(f"{stem}{end}"), Path(f"{stem}{end}{COMPRESSED}")
        return plain if plain.is_file() else compressed if compressed.is_file() else None

    for form in forms:
        if all(paths := [*map(present, form)]):
            return paths
    names = " and no ".join(" and ".join(f"{stem}{end}" for end in form) for form in forms)
    raise ValueError(f"data.path has no {names}, plain or as {COMPRESSED}{hint}")


def find_split(config: CorpusData, split: str, forms: Sequence[Sequence[str]]) -> Sequence[Path]:
    """Return the files of a split in the folder `config.path`, as `find_files`."""
    if not config.path:
        raise ValueError(f"data.name={config.name} needs a folder: --config.data.path=FOLDER")
    hint = f"; --config.data.files.{split}=NAME names those of the {split} split"
    return find_files(Path(config.path) / getattr(config.files, split), forms, hint)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that may be compressed; a UsageError names one that cannot be read."""
    try:
        with gzip.open(path) if path.suffix == COMPRESSED else path.open("rb") as file:
            yield file
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def read_lines(path: Path) -> Iterator[Line]:
    r"""Yield the lines of a file, which "\n" ends, as `opened`; a byte order mark is left out."""
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if text:  # not a byte order mark alone
                yield Line.of(f"{path}, line {number}", text.removesuffix(b"\n"))

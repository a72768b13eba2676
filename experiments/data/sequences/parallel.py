"""Parallel text of your own: two files whose lines translate each other, or one with two columns.

A split is found in `data.path` by its name in `data.files`, here "train", and by `data.source` and
`data.target`, here "en" and "de":

    train.en and train.de, or train.tsv with a tab between the two; each also as .gz

Of these one must be there. A byte order mark is no text.

What is wrong with a pair is told with its file and line.
"""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from itertools import chain, product, zip_longest
from pathlib import Path

from ml_collections import ConfigDict

from experiments.data.sequences.corpora import corpus_source
from experiments.data.sequences.faults import Line
from experiments.errors import UsageError

COMPRESSED = ".gz"


def check(config: ConfigDict) -> None:
    """Checks that the files are there.

    Raises:
        ValueError: in one sentence.
    """
    for split in SOURCE.splits:
        _files(config, split)


def lines(config: ConfigDict, split: str) -> Iterator[tuple[Line, Line]]:
    """Both sides of every pair of a split.

    Raises:
        UsageError: files that cannot be read or are of unequal length.
    """
    paths = _files(config, split)
    if len(paths) == 1:
        for line in _read(paths[0]):
            columns = line.text.split("\t")
            fault = line.fault or ("" if len(columns) == 2 else f"{len(columns)} columns, not 2")
            source, target = columns if not fault else ("", "")
            yield Line(line.place, source, fault), Line(line.place, target)
        return
    sides = [_read(path) for path in paths]
    for number, pair in enumerate(zip_longest(*sides)):
        if None in pair:
            rest = 1 + sum(1 for side in sides for _ in side)  # one of the sides is at its end
            longer = [number if line is None else number + rest for line in pair]
            counts = " and ".join(f"{p} {n:,}" for p, n in zip(paths, longer, strict=True))
            raise UsageError(f"two files of parallel text have equally many lines, not {counts}")
        yield pair


def _files(config: ConfigDict, split: str) -> list[Path]:
    """The file of both languages, or one for each."""
    folder, stem = Path(config.path), config.files[split]
    languages = config.source, config.target
    names = [[f"{stem}.tsv"], [f"{stem}.{language}" for language in languages]]

    def present(name: str) -> list[Path]:
        paths = (folder / (name + end) for end in ("", COMPRESSED))
        return [path for path in paths if path.is_file()]

    found = [paths for form in names for paths in product(*map(present, form))]
    if len(found) > 1:
        told = " and ".join(dict.fromkeys(map(str, chain(*found))))
        raise ValueError(f"the {split} split is there more than once, in {told}: leave one form")
    if found:
        return [*found[0]]
    raise ValueError(
        f"data.path={config.path} has no {' and '.join(names[1])} and no {names[0][0]} for the "
        f"{split} split, plain or as {COMPRESSED}: name it by --config.data.files.{split}=NAME"
    )


def _read(path: Path) -> Iterator[Line]:
    opened = gzip.open if path.suffix == COMPRESSED else open
    try:
        with opened(path, "rb") as file:
            # Only "\n" ends a line of a binary file; a carriage return before it is a blank.
            for number, line in enumerate(file, start=1):
                text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if text:  # not a byte order mark alone
                    yield Line.of(f"{path}, line {number}", text.removesuffix(b"\n"))
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


SOURCE = corpus_source(lines, check)

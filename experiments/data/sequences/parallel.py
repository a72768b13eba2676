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
from itertools import chain, product
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
    sides = [list(_read(path)) for path in paths]
    if len(sides[0]) != len(sides[1]):
        counts = " and ".join(f"{path} {len(s):,}" for path, s in zip(paths, sides, strict=True))
        raise UsageError(f"two files of parallel text have equally many lines, not {counts}")
    yield from zip(*sides, strict=True)


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
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == COMPRESSED else content
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    content = content.removeprefix(codecs.BOM_UTF8)
    # Other characters end no line, as for all who count them; a carriage return at one is a blank.
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    for number, line in enumerate(lines, start=1):
        yield Line.of(f"{path}, line {number}", line)


SOURCE = corpus_source(lines, check)

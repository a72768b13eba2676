"""Parallel text: two files whose lines are translations of each other, or one with two columns.

A split is found in `data.path` by its name in `data.files`, here "train", and by `data.source` and
`data.target`, here "en" and "de":

    train.en and train.de, or train.tsv with a tab between the two; each also as .gz

If `data.path` is one file with two columns, or "corpus" for corpus.en and corpus.de, it is divided
by its lines: of each 20, line 19 is for validation and line 20 for the test.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from experiments.config.data import Splits
from experiments.data.corpora import (
    COMPRESSED,
    CorpusData,
    Line,
    corpus_source,
    find_files,
    list_files,
    read_lines,
)
from experiments.errors import UsageError
from experiments.registry import dataset

EVERY = 20  # lines of a file that is divided
HELD_OUT = {18: "validation", 19: "test"}


def lines(config: "ParallelData", split: str) -> Iterator[tuple[Line, Line]]:
    """Yield both sides of every pair of a split.

    Raises:
        ValueError: files that are missing.
        UsageError: files that cannot be read or are of unequal length.
    """
    paths = undivided_files(config)
    if not paths:
        stem = getattr(config.files, split)
        sides = [f"{stem}.{language}" for language in (config.source, config.target)]
        yield from _pairs(find_files(config, split, [sides, [f"{stem}.tsv"]]))
    for number, pair in enumerate(_pairs(paths) if paths else ()):
        if HELD_OUT.get(number % EVERY, "train") == split:
            yield pair


def undivided_files(config: "ParallelData") -> list[Path]:
    """Return the file of two columns, or the two files, that `data.path` names, if it does."""
    path = Path(config.path)
    if path.is_file() or not config.path:
        return [path] if config.path else []
    sides = []
    for language in (config.source, config.target):
        names = (Path(f"{path}.{language}{end}") for end in ("", COMPRESSED))
        sides += [name for name in names if name.is_file()][:1]
    return sides if len(sides) == 2 else []


def _pairs(paths: Sequence[Path]) -> Iterator[tuple[Line, Line]]:
    """Yield the pairs of one file with two columns, or of two files."""
    if len(paths) == 1:
        for line in read_lines(paths[0]):
            columns = line.text.split("\t")
            fault = line.fault or ("" if len(columns) == 2 else f"{len(columns)} columns, not 2")
            source, target = columns if not fault else ("", "")
            yield Line(line.place, source, fault), Line(line.place, target)
        return
    readers = [read_lines(path) for path in paths]
    for number, pair in enumerate(zip_longest(*readers)):
        if None in pair:
            rest = 1 + sum(1 for side in readers for _ in side)  # one of the sides is at its end
            longer = [number if line is None else number + rest for line in pair]
            counts = " and ".join(f"{p} {n:,}" for p, n in zip(paths, longer, strict=True))
            raise UsageError(f"two files of parallel text have equally many lines, not {counts}")
        yield pair


SOURCE = corpus_source(lines, lambda config: undivided_files(config) or list_files(config))


@dataset(source=SOURCE, contains=("text", "pairs", "classes"))
@dataclass(frozen=True, kw_only=True)
class ParallelData(CorpusData):
    """Parallel text: two files whose lines are translations, or one with two columns."""

    name: str = "parallel"
    files: Splits = field(default_factory=Splits)

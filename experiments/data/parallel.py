"""Parallel text: two files whose lines are translations of each other, or one with two columns.

A split is found in `data.path` by its name in `data.files`, here "train", and by `data.source` and
`data.target`, here "en" and "de":

    train.en and train.de, or train.tsv with a tab between the two; each also as .gz
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from experiments.config.data import Splits
from experiments.data.corpora import (
    CorpusData,
    Line,
    corpus_source,
    find_files,
    list_files,
    read_lines,
)
from experiments.errors import UsageError
from experiments.registry import dataset


def lines(config: "ParallelData", split: str) -> Iterator[tuple[Line, Line]]:
    """Yield both sides of every pair of a split.

    Raises:
        ValueError: files that are missing.
        UsageError: files that cannot be read or are of unequal length.
    """
    stem = getattr(config.files, split)
    sides = [f"{stem}.{language}" for language in (config.source, config.target)]
    paths = find_files(config, split, [sides, [f"{stem}.tsv"]])
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


SOURCE = corpus_source(lines, list_files)


@dataset(source=SOURCE, contains=("text", "pairs", "classes"))
@dataclass(frozen=True, kw_only=True)
class ParallelData(CorpusData):
    """Parallel text: two files whose lines are translations, or one with two columns."""

    name: str = "parallel"
    files: Splits = field(default_factory=Splits)

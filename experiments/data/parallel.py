"""Parallel text: two files whose lines are translations of each other, or one with two columns.

A split is found in the folder `data.path` by its name in `data.files`, here "train", and by
`data.source` and `data.target`, here "en" and "de":

    train.en and train.de, or train.tsv with a tab between the two; each also as .gz

`data.path` may also be such a file, or "mine" for mine.en and mine.de: of 20 pairs, one is then for
validation and one for tests.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from experiments.config.parts import Splits
from experiments.data.corpora import CORPUS, CorpusData, Line, find_files, find_split, read_lines
from experiments.errors import UsageError
from experiments.registry import dataset

CYCLE = 20  # pairs of one file, of which these are not for training
HELD_OUT = {9: "validation", 19: "test"}


@dataset(source=CORPUS, contains=("text", "pairs", "classes"))
@dataclass(frozen=True, kw_only=True)
class ParallelData(CorpusData):
    """Parallel text: two files whose lines are translations, or one with two columns."""

    name: str = "parallel"
    files: Splits = field(default_factory=Splits)

    def lines(self, split: str) -> Iterator[tuple[Line, ...]]:
        """Yield both sides of every pair; a ValueError or UsageError names a fault of the files."""
        path, sides = Path(self.path), [f".{self.source}", f".{self.target}"]
        if not self.path or path.is_dir():
            yield from _pairs(find_split(self, split, [sides, [".tsv"]]))
            return
        counts: Counter[str] = Counter()
        for number, pair in enumerate(_pairs(find_files(path, [sides, [""], [".tsv"]]))):
            part = HELD_OUT.get(number % CYCLE, "train")
            counts[part] += 1
            if part == split:
                yield pair
        if counts.total() < CYCLE:
            raise UsageError(
                f"data.path={path} has {counts.total()} pairs, and at least {CYCLE} can be split "
                "into train, validation and test: give more, or a folder with files of each split"
            )
        if split == "train":
            parts = ", ".join(f"{name} {counts[name]:,}" for name in ("train", *HELD_OUT.values()))
            print(f"{path} is split into pairs for {parts}", file=sys.stderr)


def _pairs(paths: Sequence[Path]) -> Iterator[tuple[Line, Line]]:
    if len(paths) == 1:
        for line in read_lines(paths[0]):
            columns = line.text.split("\t")
            fault = line.fault or (
                "" if len(columns) == 2 else f"{len(columns)} columns between tabs, not 2"
            )
            source, target = columns if not fault else ("", "")
            yield Line(line.origin, source, fault), Line(line.origin, target)
        return
    readers = [read_lines(path) for path in paths]
    for number, pair in enumerate(zip_longest(*readers)):
        if None in pair:
            rest = 1 + sum(1 for side in readers for _ in side)  # one of the sides is at its end
            longer = [number if line is None else number + rest for line in pair]
            counts = " and ".join(f"{p} {n:,}" for p, n in zip(paths, longer, strict=True))
            raise UsageError(f"two files of parallel text have equally many lines, not {counts}")
        yield pair

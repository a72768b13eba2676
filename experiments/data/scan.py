"""SCAN: commands as actions, "jump twice" as I_JUMP I_JUMP (Lake and Baroni 2018).

The files are those of the authors' repository, github.com/brendenlake/SCAN. Of its splits there are
`simple`, at random, and `length`: commands of more than `cutoff` actions are for tests, all others
for training. The cutoff of the authors is 22; Csordás et al. (EMNLP 2021) have others too. With
`validation_from` the longest commands up to the cutoff are the validation split, so that a model
can be chosen by its scores on longer commands than it was trained on, without the test split.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.config.build import option
from experiments.config.parts import RandomData
from experiments.data.sequences import generator
from experiments.data.source import Source
from experiments.data.tokenizers import SentencePair
from experiments.files import read_lines
from experiments.registry import dataset

Commands = list[SentencePair]


def load(config: "ScanData", split: str, _: Path) -> Commands:
    """Return a split; train and validation have no command in common."""
    train, test = _read(config, "train"), _read(config, "test")
    number, longest = len(train + test), max(map(_actions, train + test))
    if config.split == "length":
        train, test = _cut(train + test, config.cutoff + 1)
    if config.validation_from:
        train, validation = _cut(train, config.validation_from)
    else:
        order = generator(config.seed, "validation").permutation(len(train))
        held_out, learned = np.split(order, [config.validation])
        train, validation = [train[i] for i in learned], [train[i] for i in held_out]
    if not (train and validation and test):
        raise ValueError(
            f"data.cutoff={config.cutoff}, data.validation={config.validation} and "
            f"data.validation_from={config.validation_from} leave a split without commands: "
            f"{config.path} has {number} of up to {longest} actions"
        )
    return {"train": train, "validation": validation, "test": test}[split]


def _cut(commands: Commands, fewest: int) -> tuple[Commands, Commands]:
    """Return the shorter commands, and those of at least `fewest` actions."""
    shorter = [pair for pair in commands if _actions(pair) < fewest]
    return shorter, [pair for pair in commands if _actions(pair) >= fewest]


def _actions(pair: SentencePair) -> int:
    return len(pair.target.split())


def _read(config: "ScanData", part: str) -> Commands:
    path = Path(config.path) / f"{config.split}_{part}.txt"
    if not path.is_file():
        raise ValueError(
            f"data.path={config.path} has no file {path.name}: name a folder with this file, "
            f"tasks_{part}_{config.split}.txt of github.com/brendenlake/SCAN (Lake and Baroni 2018)"
        )
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        if not (match := re.fullmatch("IN: (.*?) OUT: (.*)", line)):
            raise ValueError(
                f"{path}, line {number}: 'IN: ... OUT: ...' expected, got {line[:40]!r}"
            )
        pairs.append(SentencePair(*map(str.strip, match.groups())))
    return pairs


@dataset(source=Source(load), contains=("pairs",))
@dataclass(frozen=True, kw_only=True)
class ScanData(RandomData):
    """Files of SCAN (Lake and Baroni 2018)."""

    name: str = "scan"
    path: str = option("data/scan", "folder of the files")
    split: str = option(
        "simple", "simple, or length: long commands are tested", among=("simple", "length")
    )
    cutoff: int = option(22, "split=length: most actions of a command that is not tested", least=1)
    validation: int = option(500, "commands of the validation split, drawn at random", least=1)
    validation_from: int = option(
        0, "split=length: fewest actions of a validation command, instead of drawing; 0: draw"
    )

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        most = self.cutoff if self.split == "length" else 0
        if not 0 <= self.validation_from <= most:
            raise ValueError(
                f"validation_from must be from 0 to {most}, the cutoff with split=length, "
                f"got {self.validation_from}"
            )

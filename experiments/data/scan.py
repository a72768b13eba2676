"""SCAN: commands as actions, "jump twice" as I_JUMP I_JUMP (Lake and Baroni 2018).

The files are those of the authors' repository, github.com/brendenlake/SCAN. Of its splits there are
`simple`, at random, and `length`: commands of more than `cutoff` actions are for tests, all others
for training. The cutoff of the authors is 22; Csordás et al. (EMNLP 2021) have others too. With
`validation_from` the longest commands up to the cutoff are the validation split, so that a model
can be chosen by its scores on longer commands than it was trained on, without the test split.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.config.build import option
from experiments.config.data import RandomData
from experiments.data.draw import generator
from experiments.data.examples import SentencePair
from experiments.data.source import Source
from experiments.errors import one_of
from experiments.files import read_lines
from experiments.registry import dataset


def load(config: "ScanData", split: str, cache: Path) -> list[SentencePair]:
    """Return a split; train and validation have no command in common."""
    del cache
    return _split(config)[split]


def _split(config: "ScanData") -> dict[str, list[SentencePair]]:
    train, test = (_read(config, part) for part in ("train", "test"))
    if config.split == "length":
        commands = train + test
        train = [pair for pair in commands if _actions(pair) <= config.cutoff]
        test = [pair for pair in commands if _actions(pair) > config.cutoff]
        if not test or not train:
            longest = max(map(_actions, commands))
            raise ValueError(
                f"data.cutoff={config.cutoff} leaves nothing to test or nothing to learn: the "
                f"longest command of {config.path} has {longest} actions"
            )
    train, validation = _held_out(config, train)
    return {"train": train, "validation": validation, "test": test}


def _held_out(
    config: "ScanData", commands: list[SentencePair]
) -> tuple[list[SentencePair], list[SentencePair]]:
    """Return the commands that are learned, and those of the validation split."""
    if shortest := config.validation_from:
        train = [pair for pair in commands if _actions(pair) < shortest]
        validation = [pair for pair in commands if _actions(pair) >= shortest]
        if not train or not validation:
            raise ValueError(
                f"data.validation_from={shortest} leaves nothing to validate or nothing to learn: "
                f"the commands have up to {max(map(_actions, commands))} actions"
            )
        return train, validation
    if config.validation >= len(commands):
        raise ValueError(
            f"data.validation must be less than the {len(commands)} commands that there are to "
            f"learn, got {config.validation}"
        )
    order = generator(config.seed, "validation").permutation(len(commands))
    held_out, learned = np.split(order, [config.validation])
    return [commands[i] for i in learned], [commands[i] for i in held_out]


def _actions(pair: SentencePair) -> int:
    return len(pair.target.split())


def _read(config: "ScanData", part: str) -> list[SentencePair]:
    path = Path(config.path) / f"{config.split}_{part}.txt"
    if not path.is_file():
        raise ValueError(
            f"data.path={config.path} has no file {path.name}: name its folder by "
            "--config.data.path; it is "
            f"tasks_{part}_{config.split}.txt of github.com/brendenlake/SCAN (Lake and Baroni 2018)"
        )
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        command, found, actions = line.partition(" OUT: ")
        if not found or not command.startswith("IN: "):
            raise ValueError(
                f"{path}, line {number}: 'IN: ... OUT: ...' expected, got {line[:40]!r}"
            )
        pairs.append(SentencePair(command.removeprefix("IN: ").strip(), actions.strip()))
    return pairs


SOURCE = Source(load)


@dataset(source=SOURCE, contains=("pairs",))
@dataclass(frozen=True, kw_only=True)
class ScanData(RandomData):
    """Files of SCAN (Lake and Baroni 2018)."""

    name: str = "scan"
    path: str = option("data/scan", "folder of the files")
    split: str = option("simple", "simple, or length: long commands are tested")
    cutoff: int = option(22, "split=length: most actions of a command that is not tested", least=1)
    validation: int = option(500, "commands of the validation split, drawn at random", least=1)
    validation_from: int = option(
        0, "split=length: fewest actions of a validation command, instead of drawing; 0: draw"
    )

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        one_of("split", self.split, ("simple", "length"))
        most = self.cutoff if self.split == "length" else 0
        if not 0 <= self.validation_from <= most:
            raise ValueError(
                f"validation_from must be from 0 to {most}, the cutoff with split=length, "
                f"got {self.validation_from}"
            )

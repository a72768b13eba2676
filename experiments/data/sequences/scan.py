"""SCAN: commands as actions, "jump twice" as I_JUMP I_JUMP (Lake and Baroni 2018).

The files are those of the authors' repository, github.com/brendenlake/SCAN. Of its splits there are
`simple`, at random, and `length`: commands of more than `cutoff` actions are for tests, all others
for training. The cutoff of the authors is 22; Csordás et al. (EMNLP 2021) have others too.
"""

from pathlib import Path

import numpy as np

from experiments.config.data import ScanData
from experiments.data.pairs import SentencePair
from experiments.data.sequences.draw import generator
from experiments.data.source import Source


def load(config: ScanData, split: str, cache: Path) -> list[SentencePair]:
    """Return a split; validation is a part of the training commands of the authors."""
    del cache
    return _split(config)[split]


def _split(config: ScanData) -> dict[str, list[SentencePair]]:
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
    if config.validation >= len(train):
        raise ValueError(
            f"data.validation must be less than the {len(train)} commands that there are to learn, "
            f"got {config.validation}"
        )
    order = generator(config.seed, "validation").permutation(len(train))
    held_out, learned = np.split(order, [config.validation])
    return {
        "train": [train[i] for i in learned],
        "validation": [train[i] for i in held_out],
        "test": test,
    }


def _actions(pair: SentencePair) -> int:
    return len(pair.target.split())


def _read(config: ScanData, part: str) -> list[SentencePair]:
    path = Path(config.path) / f"{config.split}_{part}.txt"
    if not path.is_file():
        raise ValueError(
            f"data.path={config.path} has no file {path.name}: name its folder by "
            "--config.data.path; it is "
            f"tasks_{part}_{config.split}.txt of github.com/brendenlake/SCAN (Lake and Baroni 2018)"
        )
    pairs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        command, found, actions = line.partition(" OUT: ")
        if not found or not command.startswith("IN: "):
            raise ValueError(
                f"{path}, line {number}: 'IN: ... OUT: ...' expected, got {line[:40]!r}"
            )
        pairs.append(SentencePair(command.removeprefix("IN: ").strip(), actions.strip()))
    return pairs


SOURCE = Source(load)

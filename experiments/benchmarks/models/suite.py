"""The benchmark of models: measure each figure, hold it against its goal, report."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from attention.modules import TransformerConfig
from experiments.benchmarks.models import characters, decoding, depth, training, translating
from experiments.benchmarks.models.figure import Figure
from experiments.benchmarks.selection import selected
from experiments.config import Config
from experiments.environment import environment
from experiments.errors import UsageError, as_usage_errors, check_at_least, check_positive
from experiments.files import write_whole
from experiments.registry import SOURCES
from experiments.workdir import Workdir

PARTS = ("decoding", "depth", "characters", "training", "translating")

INTRODUCTION = """\
# Benchmarks of models

What decoding, depth and learning cost, as ratios of times that were measured in turn in one
process. Made by one command, the only way to change this page:
"""


def benchmark(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Measures, and writes `models.md` to the workdir.

    Args:
        config: of the run.
        workdir: where all that the run makes goes.
        cache: where generated data is kept.
    """
    check(config)
    workdir.claim(config)
    measures: dict[str, Callable[[], Iterator[Figure]]] = {
        "decoding": partial(decoding.measure, config),
        "depth": partial(depth.measure, config),
        "characters": partial(characters.measure, config, cache),
        "training": partial(training.measure, config, cache),
        "translating": partial(translating.measure, config, cache),
    }
    figures, absent = [], []
    for part in selected("parts", config.parts, PARTS):
        print(f"{part} …", file=sys.stderr, flush=True)
        try:
            figures += measures[part]()
        except ModuleNotFoundError as error:
            absent.append(f"{part}: it needs {error.name}: `pip install {error.name}` brings that")
        except (ImportError, FileNotFoundError) as error:
            absent.append(f"{part}: {error}")
    text = page(figures, absent, shlex.join(["python", *sys.argv]))
    write_whole(workdir.path / "models.md", text)
    if config.page:
        write_whole(Path(config.page), text)
    print(text)
    print(f"everything is in {workdir.path}")


def check(config: ConfigDict) -> None:
    """Refuses, before anything is written, a configuration that cannot run.

    Raises:
        UsageError: in one sentence.
    """
    if config.page and not Path(config.page).parent.is_dir():
        raise UsageError(f"page={config.page} has no folder to be written to")
    with as_usage_errors():
        selected("parts", config.parts, PARTS)
        check_at_least("rounds", config.rounds, 1)
        for part in ("decoding", "depth"):
            check_sizes(part, config[part])
        if not 1 <= config.decoding.num_beams <= decoding.VOCABULARY:
            raise ValueError(
                f"decoding.num_beams must lie in 1 to the vocabulary's {decoding.VOCABULARY}, "
                f"got {config.decoding.num_beams}"
            )
        if len(config.depth.layers) != 2:
            raise ValueError(f"depth.layers must be two numbers, got {config.depth.layers}")
        check_at_least("depth.compilations", config.depth.compilations, 1)
        check_at_least("training.steps", config.training.steps, 1)
        check_length("translating", config.translating.length, "translation", config.translation)
        check_positive("translating.seconds", config.translating.seconds)
    Config.read(config.characters.to_dict())
    settings = Config.read(config.translation.to_dict())
    if settings.data.path:
        with as_usage_errors():
            for split in ("train", "test"):
                next(iter(SOURCES[settings.data.name].load(settings.data, split, Path())))
    if run := config.translating.workdir:
        if not config.translation.data.path:
            raise UsageError(f"translating.workdir={run} needs sentences: translation.data.path")
        Workdir(run).as_trained(settings)


def check_sizes(part: str, config: ConfigDict) -> None:
    """Checks what `decoding` and `depth` have in common.

    Raises:
        ValueError: in one sentence.
    """
    TransformerConfig(**config.model)
    check_length(part, config.length, part, config)
    for name in ("batches", "batch", "layers"):
        for number in np.atleast_1d(config.get(name, 1)):
            check_at_least(f"{part}.{name}", number, 1)
    check_positive(f"{part}.seconds", config.seconds)


def check_length(part: str, length: int, owner: str, config: ConfigDict) -> None:
    """Checks how much a part says by the model of its own configuration, or of another's.

    Raises:
        ValueError: in one sentence.
    """
    longest = config.model.max_length
    if not 1 <= length <= longest:
        raise ValueError(
            f"{part}.length must lie in 1 to {owner}.model.max_length={longest}, got {length}"
        )


def page(figures: Sequence[Figure], absent: Sequence[str], command: str) -> str:
    """Markdown: what was measured, whether it is what it should be, and what was not measured."""
    where = "; ".join(f"{name} {value}" for name, value in environment().items())
    rows = [
        f"| {one.name} | {one.parts} | {one.ratio:.2f} | {one.limit:.2f} | {_verdict(one)} |"
        for one in figures
    ]
    missing = ["", "Not measured:", "", *(f"- {why}" for why in absent)] if absent else []
    return "\n".join(
        [
            f"{INTRODUCTION}\n```sh\n{command}\n```\n",
            f"Measured on {where}.\n",
            "| figure | medians, or totals | ratio | goal, at most | |",
            "|---|---|---:|---:|---|",
            *rows,
            *missing,
            "",
        ]
    )


def _verdict(figure: Figure) -> str:
    return "met" if figure.ratio <= figure.limit else "**not met**"

"""The benchmark of models: measure each figure, compare it with its goal, report."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from attention.modules import TransformerConfig
from experiments.benchmarks.contender import first_line
from experiments.benchmarks.models import characters, decoding, depth, training, translating
from experiments.benchmarks.models.figure import Figure
from experiments.benchmarks.models.ours import check_translation
from experiments.benchmarks.selection import selected
from experiments.config import Config
from experiments.environment import environment
from experiments.errors import UsageError, as_usage_errors, check_at_least, check_positive
from experiments.files import write_whole
from experiments.workdir import Workdir

# Part → packages of the peers that it is measured beside.
PARTS = {
    "decoding": (),
    "depth": (),
    "characters": ("torch",),
    "training": ("torch",),
    "translating": ("torch", "ctranslate2"),
}

INTRODUCTION = """\
# Benchmarks of models

Cost of decoding, depth and training, as ratios of times that were measured in turn in one process.
This command writes the page:
"""


def benchmark(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Measure, and write `models.md` to the workdir.

    Args:
        config: of the run.
        workdir: folder of all results.
        cache: folder of generated data.

    Raises:
        ExceptionGroup: of the exceptions of the parts that failed, after the page is written.
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
    figures, absent, errors = [], [], []
    for part in selected("parts", config.parts, list(PARTS)):
        print(f"{part} …", file=sys.stderr, flush=True)
        if reason := missing(part, config):
            absent.append(f"{part}: {reason}")
            continue
        try:
            figures += measures[part]()
        except UsageError:
            raise
        except Exception as error:  # the other parts are measured, then it is raised
            errors.append(error)
            absent.append(f"{part}: **failed**: {first_line(error)}")
    text = page(figures, absent, shlex.join(["python", *sys.argv]))
    write_whole(workdir.path / "models.md", text)
    if config.page:
        write_whole(Path(config.page), text)
    print(text)
    print(f"everything is in {workdir.path}")
    if errors:
        raise ExceptionGroup("parts of the benchmark failed", errors)


def missing(part: str, config: ConfigDict) -> str | None:
    """Return why a part cannot be measured here: a package or data is missing."""
    for package in PARTS[part]:
        if find_spec(package) is None:
            return f"needs {package}: `pip install {package}`"
    if part in ("training", "translating") and not config.translation.data.path:
        return "translation.data.path names no folder of parallel text"
    return None


def check(config: ConfigDict) -> None:
    """Check a config before anything is written.

    Raises:
        UsageError: the config cannot run.
    """
    if config.page and not Path(config.page).parent.is_dir():
        raise UsageError(f"page={config.page} has no folder to be written to")
    with as_usage_errors():
        selected("parts", config.parts, list(PARTS))
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
        check_translation(settings)
    if run := config.translating.workdir:
        if not config.translation.data.path:
            raise UsageError(f"translating.workdir={run} needs sentences: translation.data.path")
        Workdir(run).as_trained(settings)


def check_sizes(part: str, config: ConfigDict) -> None:
    """Check the fields that `decoding` and `depth` have in common.

    Raises:
        ValueError: a field is out of range.
    """
    TransformerConfig(**config.model)
    check_length(part, config.length, part, config)
    for name in ("batches", "batch", "layers"):
        for number in np.atleast_1d(config.get(name, 1)):
            check_at_least(f"{part}.{name}", number, 1)
    check_positive(f"{part}.seconds", config.seconds)


def check_length(part: str, length: int, owner: str, config: ConfigDict) -> None:
    """Check the sequence length of a part against the `max_length` of the model in `owner`.

    Raises:
        ValueError: the length is out of range.
    """
    longest = config.model.max_length
    if not 1 <= length <= longest:
        raise ValueError(
            f"{part}.length must lie in 1 to {owner}.model.max_length={longest}, got {length}"
        )


def page(figures: Sequence[Figure], absent: Sequence[str], command: str) -> str:
    """Return the page as Markdown: figures, goals, and the parts that were not measured."""
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

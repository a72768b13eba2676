"""The benchmark of models: measure each figure, compare it with its goal, report."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from attention.modules import TransformerConfig
from experiments.benchmarks.contender import first_line
from experiments.benchmarks.models import characters, decoding, depth, training, translating
from experiments.benchmarks.models.figure import Figure
from experiments.benchmarks.models.translating import check_trial
from experiments.benchmarks.record import (
    Record,
    as_json,
    beginning,
    check_page,
    origin,
    save,
    table,
)
from experiments.benchmarks.selection import selected
from experiments.config import Config
from experiments.errors import UsageError, as_usage_errors, check_at_least, check_positive
from experiments.files import write_whole
from experiments.workdir import Workdir

PARTS = "decoding", "depth", "characters", "training", "translating"
WITH_TEXT = "training", "translating"

INTRODUCTION = """\
# Benchmarks of models

Cost of decoding, depth and training, as ratios of times that were measured in turn in one process.
This command writes the page, from the figures in `MODELS.json` beside it:
"""


def benchmark(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Measure, and write `models.json` and `models.md` to the workdir.

    Args:
        config: of the run.
        workdir: folder of all results.
        cache: folder of generated data.

    Raises:
        ExceptionGroup: of the exceptions of the parts that failed, after the page is written.
    """
    check(config)
    workdir.save_config(config)
    measures: dict[str, Callable[[], Iterator[Figure]]] = {
        "decoding": partial(decoding.measure, config),
        "depth": partial(depth.measure, config),
        "characters": partial(characters.measure, config, cache),
        "training": partial(training.measure, config, cache),
        "translating": partial(translating.measure, config, cache),
    }
    record = {"origin": origin(), "figures": [], "absent": [], "failed": []}
    errors: list[Exception] = []
    for part in selected("parts", config.parts, PARTS):
        print(f"{part} …", file=sys.stderr, flush=True)
        if part in WITH_TEXT and not config.translation.data.path:
            record["absent"].append(f"{part}: no folder is named by translation.data.path")
            continue
        try:
            for figure in measures[part]():
                record["figures"].append(figure.as_dict())
        except UsageError:
            raise
        except Exception as error:  # the other parts are measured, then it is raised
            errors.append(error)
            record["failed"].append(f"{part}: {first_line(error)}")
        write_whole(workdir.path / "models.json", as_json(record))
    text = save(record, page, workdir.path / "models.json", config.page)
    print(text)
    print(f"everything is in {workdir.path}")
    if errors:
        raise ExceptionGroup("parts of the benchmark failed", errors)


def check(config: ConfigDict) -> None:
    """Check a config before anything is written.

    Raises:
        UsageError: the config cannot run.
    """
    check_page(config.page)
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
    check_trial(config)


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


def page(record: Record) -> str:
    """Return the page of a record as Markdown.

    Args:
        record: `origin`, `figures`, and in words `absent`, the parts that were not measured, and
            `failed`, the exceptions of this library.
    """
    lines = [["figure", "medians, or totals", "ratio", "goal, at most", ""]]
    for figure in map(Figure.read, record["figures"]):
        ratio = "-" if figure.ratio is None else f"{figure.ratio:.2f}"
        parts = f"{figure.ours} ÷ {figure.theirs}"
        lines.append([figure.name, parts, ratio, f"{figure.limit:.2f}", _verdict(figure)])
    parts = [beginning(INTRODUCTION, record["origin"]), table(lines)]
    for title, reasons in (("Failures", record["failed"]), ("Not measured", record["absent"])):
        if reasons:
            parts += ["", f"{title}:", "", *(f"- {why}" for why in reasons)]
    return "\n".join([*parts, ""])


def _verdict(figure: Figure) -> str:
    if figure.ratio is None:
        return "not measured"
    return "met" if figure.ratio <= figure.limit else "**not met**"

"""Comparison: several runs on the same data with the same budget, as a table and a picture."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments.analysis.pictures import draw_comparison
from experiments.clock import round_robin
from experiments.commands.train import train
from experiments.config import Config
from experiments.config.flags import as_config_dict
from experiments.data.rows import EncodedPair, pad_batch
from experiments.data.sources import Splits
from experiments.data.vocabulary import SPECIALS
from experiments.errors import UsageError
from experiments.evaluation.scores import paired_bootstrap
from experiments.registry import SOURCES, TASKS
from experiments.tables import write_tables
from experiments.training.metrics import read_metrics
from experiments.workdir import Workdir, differences, in_lines

LENGTHS = (8, 16, 32, 64, 128)  # of the sentences whose training step is timed
REPEATS = 5
COMPARED = (("exact_match", 100), ("bleu", 1), ("tok_bleu", 1), ("word_perplexity", 1))


def compare(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Trains every run in a folder of its own, and sets side by side what came of them.

    Args:
        config: `runs`, the configuration of each by its name.
        workdir: where the runs go, and `comparison.md`, `.csv` and `.png`.
        cache: where generated data is kept.
    """
    check(config)
    runs = {name: Config.read(run.to_dict()) for name, run in config.runs.items()}
    runs = {  # with the steps of a duration; data that cannot be read is refused here
        name: TASKS[run.task].prepare(run, cache).config for name, run in runs.items()
    }
    trees = {name: as_config_dict(run) for name, run in runs.items()}
    workdir.claim(ConfigDict({"task": config.task, "runs": trees}))
    places = {name: Workdir(workdir.path / name) for name in runs}
    for name, run in runs.items():  # whatever is refused is refused before any training
        places[name].claim(run)
    rows = []
    for name, run in runs.items():
        print(f"== {name}")
        try:
            train(run, places[name], cache)
        except FloatingPointError as error:  # the others are compared all the same
            print(f"{name} is left out: {error}", file=sys.stderr)
        else:
            rows.append({"run": name} | figures(places[name]))
            write_tables(rows, workdir.path / "comparison")  # if it is stopped
    if not rows:
        raise UsageError(f"none of the runs in {workdir.path} reached its end")
    measured = [row["run"] for row in rows]
    for split, chances in by_chance(
        {name: places[name] for name in measured}, runs[measured[0]], cache
    ):
        for row in rows:
            chance = 100 * chances[row["run"]] if row["run"] in chances else ""
            row[f"{split} bleu p % against {measured[0]}"] = chance
    costs = seconds_by_length({name: runs[name] for name in measured}, places, cache)
    for row in rows:
        row |= {f"ms at {length}": 1e3 * s for length, s in costs[row["run"]].items()}
    table = write_tables(rows, workdir.path / "comparison")
    curves = {name: read_metrics(places[name].path) for name in measured}
    draw_comparison(curves, costs, workdir.path / "comparison.png")
    print(table, end="")
    print(f"everything is in {workdir.path}")


def check(config: ConfigDict) -> None:
    """Refuses, before anything is written, runs that do not compare.

    Raises:
        UsageError: in one sentence.
    """
    if len(config.runs) < 2:
        raise UsageError("a comparison needs two runs: give --config twice")
    (first, reference), *others = config.runs.items()
    for name, run in config.runs.items():
        if run.task != "translation":
            raise UsageError(f"{name} is of task {run.task!r}: translation compares")
    for name, run in others:
        common = {first: _common(reference), name: _common(run)}
        if fields := differences(*common.values()):
            raise UsageError(
                f"{first} and {name} differ: a comparison is of the same data with the same budget"
                + in_lines(fields, {f"in {run}": fields for run, fields in common.items()})
            )


def _common(run: ConfigDict) -> dict[str, Any]:
    """What runs that are compared have in common."""
    budget = {name: run.train[name] for name in ("steps", "duration")}
    data = {name: run[name].to_dict() for name in ("data", "text") if name in run}
    return {**data, "batch": {"tokens": run.batch.tokens}, "train": budget}


def figures(workdir: Workdir) -> dict[str, Any]:
    """What a run cost and what it achieved, one number each."""
    results = workdir.load_results()
    speeds = [
        row["tokens_per_second"] for row in read_metrics(workdir.path) if row["split"] == "train"
    ]
    scores = {
        f"{split} {name.replace('_', ' ')}": scores[name] * factor
        for split, scores in results["splits"].items()
        for name, factor in COMPARED
        if name in scores
    }
    return {
        "parameters": results["parameters"],
        "seconds": results["training_seconds"],
        "tokens/s": float(np.median(speeds)),
    } | scores


def by_chance(
    places: Mapping[str, Workdir], config: Config, cache: Path
) -> Iterator[tuple[str, dict[str, float]]]:
    """For each test split, the p-value of the difference between each run and the first."""
    data = config.data
    splits = Splits(data, cache)
    for split in SOURCES[data.name].tests:
        said = {name: place.load_hypotheses(split) for name, place in places.items()}
        references = [pair.target for pair in splits[split]]
        tokenized = getattr(data, "tokenized", False)
        yield split, paired_bootstrap(said, references, tokenized=tokenized)


def seconds_by_length(
    runs: Mapping[str, Config], places: Mapping[str, Workdir], cache: Path
) -> dict[str, dict[int, float]]:
    """The median time of a training step at each length, all runs in turn.

    Every step has the same number of tokens, whatever its length.
    """
    seconds: dict[str, dict[int, float]] = {name: {} for name in runs}
    for length in LENGTHS:
        steps = {name: _step(run, places[name], cache, length) for name, run in runs.items()}
        times = round_robin(steps, dict.fromkeys(runs, 0.0), seconds=math.inf, rounds=REPEATS)
        for name, taken in times.items():
            seconds[name][length] = float(np.median(taken))
    return seconds


def _step(config: Config, workdir: Workdir, cache: Path, length: int) -> Callable[[], None]:
    """One more training step each time it is called, the first of which compiles here."""
    tokens = max(config.batch.tokens, max(LENGTHS))
    batch = replace(config.batch, tokens=tokens, bucket_lengths=(max(LENGTHS),))
    config = replace(config, batch=batch, model=replace(config.model, max_length=max(LENGTHS)))
    learner = TASKS[config.task].load(config, workdir, cache).learner
    words = [len(SPECIALS)] * (length - 1)  # all the first one, for any would do
    size = tokens // length
    batch = pad_batch([EncodedPair(words, words)] * size, size, length)
    state = learner.initial_state()

    def step() -> None:
        nonlocal state
        state, measured = learner.train_step(state, batch)
        measured["loss"].block_until_ready()

    step()
    return step

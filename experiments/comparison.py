"""Comparison: several runs on the same data with the same budget, as a table and a picture."""

import csv
import io
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments import translation
from experiments.analysis.pictures import draw_comparison
from experiments.data.batching import EncodedPair, pad_batch
from experiments.errors import UsageError
from experiments.files import write_whole
from experiments.training.metrics import read_metrics
from experiments.workdir import Workdir

LENGTHS = (8, 16, 32, 64, 128)  # of the sentences whose training step is timed
REPEATS = 5


def compare(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Trains every run in a folder of its own, and sets side by side what came of them.

    Args:
        config: `runs`, the configuration of each by its name.
        workdir: where the runs go, and `comparison.md`, `.csv` and `.png`.
        cache: where generated data is kept.
    """
    check(config)
    workdir.claim(config)
    for name, run in config.runs.items():  # whatever is refused is refused before any training
        Workdir(workdir.path / name).claim(run)
    rows, costs = [], {}
    for name, run in config.runs.items():
        print(f"== {name}")
        place = Workdir(workdir.path / name)
        translation.train(run, place, cache)
        rows.append({"run": name} | figures(place))
        costs[name] = seconds_by_length(run, place)
    table = as_table(rows)
    write_whole(workdir.path / "comparison.md", table)
    write_whole(workdir.path / "comparison.csv", as_csv(rows))
    curves = {name: read_metrics(workdir.path / name) for name in config.runs}
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
        if run.experiment != "translation":
            raise UsageError(f"{name} is of experiment {run.experiment!r}: translation compares")
        translation.check(run)
    for name, run in others:
        for what, ours, theirs in (
            ("data", reference.data.to_dict(), run.data.to_dict()),
            ("train.steps", reference.train.steps, run.train.steps),
            ("train.batch_tokens", reference.train.batch_tokens, run.train.batch_tokens),
        ):
            if ours != theirs:
                raise UsageError(
                    f"{first} and {name} differ in {what}: a comparison is of the same data with "
                    "the same budget"
                )


def figures(workdir: Workdir) -> dict[str, Any]:
    """What a run cost and what it achieved, one number each."""
    results = json.loads(workdir.results.read_text(encoding="utf-8"))
    speeds = [
        row["tokens_per_second"] for row in read_metrics(workdir.path) if row["split"] == "train"
    ]
    scores = {
        f"{split} {name.replace('_', ' ')}": scores[name] * factor
        for split, scores in results["splits"].items()
        for name, factor in (("exact_match", 100), ("bleu", 1), ("tok_bleu", 1))
        if name in scores
    }
    return {
        "parameters": results["parameters"],
        "seconds": results["training_seconds"],
        "tokens/s": float(np.median(speeds)),
    } | scores


def seconds_by_length(config: ConfigDict, workdir: Workdir) -> dict[int, float]:
    """The median time of a training step, of the same number of tokens at each length."""
    longest = max(LENGTHS)
    config = config.copy_and_resolve_references()
    config.model.max_length = longest
    task = translation.load_task(config, workdir)
    tokens = max(config.train.batch_tokens, longest)
    seconds = {}
    for length in LENGTHS:
        pair = EncodedPair([3] * (length - 1), [3] * (length - 1))
        batch = pad_batch([pair] * (tokens // length), tokens // length, length)
        state, measured = task.learner.train_step(task.learner.initial_state(), batch)
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            state, measured = task.learner.train_step(state, batch)
            measured["loss"].block_until_ready()
            times.append(time.perf_counter() - start)
        seconds[length] = float(np.median(times))
    return seconds


def as_table(rows: list[Mapping[str, Any]]) -> str:
    """Rows as a table that people read, one run a line."""
    names = list(rows[0])
    cells = [names, ["---"] * len(names)]
    for row in rows:
        cells.append([_written(row[name]) for name in names])
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _written(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def as_csv(rows: list[Mapping[str, Any]]) -> str:
    """Rows as a table that programs read."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()

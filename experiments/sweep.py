"""Train several runs, and report mean and standard deviation over seeds."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import jax

from experiments.analysis.figures import draw_runs
from experiments.config import Config
from experiments.errors import DivergedError, UsageError
from experiments.files import write_whole
from experiments.metrics import read_metrics
from experiments.records import (
    Run,
    group_name,
    markdown_table,
    score_rows,
)
from experiments.registry import TASKS
from experiments.train import train
from experiments.trained import best_step, is_finished, monitored_loss
from experiments.workdir import Workdir


def sweep(
    runs: Mapping[str, Config], workdir: Workdir, cache: Path, wandb: str | None = None
) -> None:
    """Train each run, and write `sweep.json`, `sweep.md` and `sweep.png`.

    Args:
        runs: config of each run; names that differ in "seed=N" alone have one row.
        workdir: contains a folder for each run.
        cache: folder of generated data.
        wandb: project of Weights & Biases that takes the metrics of each run too.
    """
    workdirs = train_all(runs, workdir, cache, wandb)
    groups: dict[str, list[Run]] = {}
    for name, place in workdirs.items():
        run = Run.read(place.path, name)
        groups.setdefault(group_name(name) or workdir.path.name, []).append(run)
    text = markdown_table(score_rows(groups))
    values = {name: [run._asdict() for run in runs] for name, runs in groups.items()}
    write_whole(workdir.path / "sweep.json", json.dumps(values, default=str, indent=2) + "\n")
    write_whole(workdir.path / "sweep.md", text)
    curves = {name: read_metrics(place.path) for name, place in workdirs.items()}
    draw_runs(curves, workdir.path / "sweep.png")
    print(text, end="")
    print(f"everything is in {workdir.path}")


def train_all(
    runs: Mapping[str, Config], workdir: Workdir, cache: Path, wandb: str | None = None
) -> dict[str, Workdir]:
    """Train each run that has not reached its end, each in its folder.

    Returns:
        The workdirs of the runs that have reached their end.

    Raises:
        UsageError: before any training: data, a model or a workdir that does not fit; after it: no
            run has reached its end.
    """
    if workdir.config.exists():
        raise UsageError(f"{workdir.path} is the workdir of a single run: choose another --workdir")
    workdirs = {name: Workdir(workdir.path / name) for name in runs}
    resolved = {}
    for name, run in runs.items():
        try:
            task = TASKS[run.task].prepare(run, cache, workdirs[name])
            print(f"{name}: {task.learner.num_parameters:,} parameters", flush=True)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from error
        resolved[name] = task.config  # with the steps of a duration
    for name, run in resolved.items():
        workdirs[name].save_config(run)
    waiting = [name for name, run in resolved.items() if not has_ended(run, workdirs[name])]
    print(f"{len(waiting)} of {len(runs)} runs have not reached their end")
    for name in waiting:
        print(f"== {name}")
        try:
            train(resolved[name], workdirs[name], cache, wandb=wandb)
        except DivergedError as error:  # the others are trained all the same
            print(f"{name} is left out: {error}", file=sys.stderr)
        jax.clear_caches()  # or programs of all runs stay in memory
    ended = {name: place for name, place in workdirs.items() if has_ended(resolved[name], place)}
    if not ended:
        raise UsageError(f"none of the runs in {workdir.path} reached its end")
    return ended


def has_ended(config: Config, workdir: Workdir) -> bool:
    """Return whether a run was trained to its last step, or to the end of its patience."""
    if not workdir.results.exists():
        return False
    results, train = workdir.load_results(), config.train
    if not results.get("ended") or not train.patience:
        return bool(results.get("ended")) and results["step"] >= train.steps
    losses = [
        (row["step"], monitored_loss(row, train))
        for row in read_metrics(workdir.path)
        if row["split"] == "validation"
    ]
    if not losses:
        return False
    return is_finished(losses[-1][0], losses, train) and results["step"] == best_step(losses)

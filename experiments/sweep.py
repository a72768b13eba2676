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
from experiments.records import markdown_table, read_runs, score_rows
from experiments.registry import TASKS
from experiments.train import train
from experiments.workdir import Workdir


def sweep(
    runs: Mapping[str, Config], workdir: Workdir, cache: Path, wandb: str | None = None
) -> None:
    """Train each run in a folder of `workdir`; write `sweep.json`, `sweep.md` and `sweep.png`.

    Runs whose names differ in "seed=N" alone have one row of the table.

    Raises:
        UsageError: before any training: data, a model or a workdir that does not fit; after it: no
            run has reached its end.
    """
    names = train_all(runs, workdir, cache, wandb)
    groups = read_runs(workdir.path, names)
    text = markdown_table(score_rows(groups))
    values = {name: [run._asdict() for run in group] for name, group in groups.items()}
    write_whole(workdir.path / "sweep.json", json.dumps(values, default=str, indent=2) + "\n")
    write_whole(workdir.path / "sweep.md", text)
    curves = {name: read_metrics(workdir.path / name) for name in names}
    draw_runs(curves, workdir.path / "sweep.png")
    print(text, end="")
    print(f"everything is in {workdir.path}")


def train_all(
    runs: Mapping[str, Config], workdir: Workdir, cache: Path, wandb: str | None
) -> list[str]:
    """Train each run that has not reached its end; return the names of those that have."""
    if workdir.config.exists():
        raise UsageError(f"{workdir.path} is the workdir of a single run: choose another --workdir")
    workdirs = {name: Workdir(workdir.path / name) for name in runs}
    resolved = {}
    for name, run in runs.items():
        print(f"{name}: ", end="", flush=True)
        task = TASKS[run.task].prepare(run, cache, workdirs[name])
        print(f"{task.learner.num_parameters:,} parameters", flush=True)
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
    return [name for name in runs if has_ended(resolved[name], workdirs[name])]


def has_ended(config: Config, workdir: Workdir) -> bool:
    """Return whether a run was measured after its last step, or the end of its patience."""
    results = workdir.load_results() if workdir.results.exists() else {}
    return bool(results.get("ended")) and results.get("train_steps") == config.train.steps

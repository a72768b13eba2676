"""Train several runs, and report mean and standard deviation over seeds."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from experiments.analysis.curves import draw_runs
from experiments.config import Config
from experiments.errors import DivergedError, UsageError
from experiments.files import write_whole
from experiments.metrics import import_wandb, read_metrics
from experiments.records import Record, Run, label_of, table, warn_skipped
from experiments.registry import TASKS
from experiments.results import NOT_SHOWN, SHOWN
from experiments.train import train
from experiments.training.plateau import best_step, monitored_loss, out_of_patience
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
    points: dict[str, list[Run]] = {}
    for name, place in workdirs.items():
        run = Run.read(place.path, name)
        points.setdefault(run.label or workdir.path.name, []).append(run)
    records = [Record.of(label, runs_of_point) for label, runs_of_point in points.items()]
    path, text = workdir.path / "sweep", table(score_rows(records))
    as_json = json.dumps([record._asdict() for record in records], indent=2)
    write_whole(path.with_suffix(".json"), as_json + "\n")
    write_whole(path.with_suffix(".md"), text)
    curves = {name: read_metrics(place.path) for name, place in workdirs.items()}
    draw_runs(curves, headlines(records), {}, path.with_suffix(".png"))
    print(f"{text}everything is in {workdir.path}")


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
    if wandb:
        import_wandb()
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
        workdirs[name].claim(run)
    waiting = [name for name, run in resolved.items() if not has_ended(run, workdirs[name])]
    print(f"{len(waiting)} of {len(runs)} runs have not reached their end")
    for name in waiting:
        print(f"== {name}")
        try:
            train(resolved[name], workdirs[name], cache, wandb=wandb)
        except DivergedError as error:  # the others are trained all the same
            warn_skipped(name, error)
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
    is_done = losses[-1][0] >= train.steps or out_of_patience(losses, train.patience)
    return is_done and results["step"] == best_step(losses)


def score_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    """Return a row of the table for each record and split, with mean and standard deviation."""
    known = [score for each in records for scores in each.scores.values() for score in scores]
    hidden = {*NOT_SHOWN} - {"loss"}
    ordered = dict.fromkeys(("loss", *SHOWN, *known))
    columns = [score for score in ordered if score in known and score not in hidden]
    return [
        {"run": record.title, "split": split, "seeds": ", ".join(map(str, record.seeds))}
        | {label_of(score): record.written(split, score) for score in columns}
        for record in records
        for split in record.scores
    ]


def headlines(records: Sequence[Record]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return mean and standard deviation of one score of each split, by its name and by record."""
    by_score: dict[str, dict[str, tuple[float, float]]] = {}
    for record in records:
        for split, scores in record.scores.items():
            score = record.headline(split)
            is_share, values = "%" in SHOWN.get(score, ("", ""))[1], scores[score]
            factor, unit = (100, " (%)") if is_share else (1, "")
            figures = (factor * values["mean"], factor * (values["std"] or 0))
            by_score.setdefault(f"{split} {label_of(score)}{unit}", {})[record.title] = figures
    return by_score

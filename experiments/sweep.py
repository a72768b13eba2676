"""Train several runs, and report mean and standard deviation over seeds."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax

from experiments.analysis.curves import draw_runs
from experiments.config import Config
from experiments.errors import UsageError
from experiments.files import write_whole
from experiments.metrics import read_metrics
from experiments.records import Record, Run, label_of, table, warn_skipped
from experiments.registry import TASKS
from experiments.results import NOT_SHOWN, SHOWN
from experiments.train import train
from experiments.trained import best_step, is_finished, monitored_loss
from experiments.workdir import Workdir


def sweep(
    runs: Mapping[str, Config],
    workdir: Workdir,
    cache: Path,
    wandb: str | None = None,
) -> None:
    """Train each run, and write `sweep.json`, `sweep.md` and `sweep.png`.

    Args:
        runs: config of each run; names that differ in "seed=N" alone have one row.
        workdir: contains a folder for each run.
        cache: folder of generated data.
        wandb: project of Weights & Biases that takes the metrics of each run too.
    """
    places = train_all(runs, workdir, cache, wandb)
    points: dict[str, list[Run]] = {}
    for name, place in places.items():
        run = Run.read(place.path, name)
        points.setdefault(run.label or workdir.path.name, []).append(run)
    records = [Record.of(label, found) for label, found in points.items()]
    written = [record._asdict() for record in records]
    write_report(workdir.path / "sweep", records, places, written, table(score_rows(records)))


def write_report(
    path: Path,
    records: Sequence[Record],
    places: Mapping[str, Workdir],
    written: Any,  # noqa: ANN401 - any JSON values
    text: str,
    costs: Mapping[str, Mapping[int, float]] = MappingProxyType({}),
) -> None:
    """Write several runs as JSON, as Markdown and as a picture, and print the Markdown.

    Args:
        path: of the files, without their ends.
        records: of the runs.
        places: workdir of each run, for its learning curve.
        written: content of the JSON file.
        text: content of the Markdown file.
        costs: seconds of a step of each run by the length of the sentences, if they were measured.
    """
    write_whole(path.with_suffix(".json"), json.dumps(written, indent=2) + "\n")
    write_whole(path.with_suffix(".md"), text)
    curves = {name: read_metrics(place.path) for name, place in places.items()}
    draw_runs(curves, headlines(records), costs, path.with_suffix(".png"))
    print(text, end="")
    print(f"everything is in {path.parent}")


def train_all(
    runs: Mapping[str, Config],
    workdir: Workdir,
    cache: Path,
    wandb: str | None = None,
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
    places = {name: Workdir(workdir.path / name) for name in runs}
    resolved = {}
    for name, run in runs.items():
        try:
            task = TASKS[run.task].prepare(run, cache, places[name])
            print(f"{name}: {task.learner.num_parameters:,} parameters", flush=True)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from error
        resolved[name] = task.config  # with the steps of a duration
    for name, run in resolved.items():
        places[name].save_config(run)
    waiting = [name for name, run in resolved.items() if not has_ended(run, places[name])]
    print(f"{len(waiting)} of {len(runs)} runs have not reached their end")
    for name in waiting:
        print(f"== {name}")
        try:
            train(resolved[name], places[name], cache, wandb=wandb)
        except FloatingPointError as error:  # the others are trained all the same
            warn_skipped(name, error)
        jax.clear_caches()  # or programs of all runs stay in memory
    ended = {name: place for name, place in places.items() if has_ended(resolved[name], place)}
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


def score_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    """Return a row of the table for each record and split, with mean and standard deviation."""
    known = [score for record in records for found in record.scores.values() for score in found]
    hidden = {*NOT_SHOWN} - {"loss"}
    columns = [
        score
        for score in dict.fromkeys(("loss", *SHOWN, *known))
        if score in known and score not in hidden
    ]
    return [
        {"run": record.title, "split": split, "seeds": ", ".join(map(str, record.seeds))}
        | {label_of(score): record.written(split, score) for score in columns}
        for record in records
        for split in record.scores
    ]


def headlines(records: Sequence[Record]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return mean and standard deviation of one score of each split, by its name and by record."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for record in records:
        for split, scores in record.scores.items():
            score = record.headline(split)
            is_share, values = "%" in SHOWN.get(score, ("", ""))[1], scores[score]
            factor, unit = (100, " (%)") if is_share else (1, "")
            figures = (factor * values["mean"], factor * (values["std"] or 0))
            found.setdefault(f"{split} {label_of(score)}{unit}", {})[record.title] = figures
    return found

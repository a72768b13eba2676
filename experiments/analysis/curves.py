"""Figures of runs: learning curves, and scores of several runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.analysis.figures import new_figure, save
from experiments.metrics import read_metrics

MOST_NAMES = 16  # runs that a legend names


def draw_learning_curve(directory: Path, path: Path) -> None:
    """Draw loss and accuracy over the steps in `metrics.jsonl` of a run."""
    rows = read_metrics(directory)
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2)
    for axes, name, label in (
        (left, "nll", "negative log-likelihood (nats per token)"),
        (right, "accuracy", "token accuracy"),
    ):
        for split, style in (("train", "-"), ("validation", "o-")):
            points = [(row["step"], row[name]) for row in rows if row["split"] == split]
            axes.plot(*zip(*points, strict=True), style, label=split, markersize=4)
        axes.set(xlabel="step", ylabel=label)
        axes.grid(alpha=0.3)
        axes.legend()
    left.set_yscale("log")
    save(figure, path)


def draw_runs(
    curves: Mapping[str, Sequence[Mapping[str, float]]],
    scores: Mapping[str, Mapping[str, tuple[float, float]]],
    costs: Mapping[str, Mapping[int, float]],
    path: Path,
) -> None:
    """Draw learning curves, scores and, if they were measured, costs of several runs.

    Args:
        curves: the rows of `metrics.jsonl` of each run.
        scores: mean and standard deviation by name of the score and of the runs.
        costs: seconds of a training step by the length of its sentences, of each run.
        path: a picture file.
    """
    figure = new_figure(15 if costs else 10, 5)
    learning, scoring, *rest = figure.subplots(1, 3 if costs else 2)
    for name, rows in curves.items():
        points = [(row["step"], row["nll"]) for row in rows if row["split"] == "train"]
        learning.plot(*zip(*points, strict=True), label=name)
    learning.set(xlabel="step", ylabel="negative log-likelihood (nats per token)", yscale="log")
    names = dict.fromkeys(run for figures in scores.values() for run in figures)
    places = {run: place for place, run in enumerate(names)}
    for number, (name, figures) in enumerate(scores.items()):
        shift = 0.5 * (number + 0.5) / len(scores) - 0.25  # or error bars cover each other
        means, deviations = zip(*figures.values(), strict=True)
        where = [places[run] + shift for run in figures]
        scoring.errorbar(where, means, deviations, fmt="o", capsize=4, label=name)
    scoring.set(ylabel="mean ± standard deviation over seeds")
    scoring.set_xticks(range(len(places)), places, rotation=20, ha="right", fontsize=8)
    for timing in rest:
        for name, seconds in costs.items():
            timing.plot([*seconds], [1000 * value for value in seconds.values()], "o-", label=name)
        timing.set(xlabel="tokens of a sentence", ylabel="ms of a training step, equal tokens")
        timing.set_xscale("log", base=2)
    for axes in (learning, scoring, *rest):
        axes.grid(alpha=0.3)
        if len(axes.lines) <= MOST_NAMES or axes is scoring:
            axes.legend(fontsize=8)
    save(figure, path)

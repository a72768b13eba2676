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


def draw_runs(curves: Mapping[str, Sequence[Mapping[str, float]]], path: Path) -> None:
    """Draw the learning curves of several runs.

    Args:
        curves: the rows of `metrics.jsonl` of each run.
        path: a picture file.
    """
    figure = new_figure(10, 5)
    axes = figure.subplots()
    for name, rows in curves.items():
        points = [(row["step"], row["nll"]) for row in rows if row["split"] == "train"]
        axes.plot(*zip(*points, strict=True), label=name)
    axes.set(xlabel="step", ylabel="negative log-likelihood (nats per token)", yscale="log")
    axes.grid(alpha=0.3)
    if len(curves) <= MOST_NAMES:
        axes.legend(fontsize=8)
    save(figure, path)

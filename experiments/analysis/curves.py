"""Figures of runs over their steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.analysis.figures import new_figure, save
from experiments.training.metrics import read_metrics


def draw_learning_curve(directory: Path, path: Path) -> None:
    """Draws loss and accuracy over the steps that `metrics.jsonl` of a run holds."""
    rows = read_metrics(directory)
    figure = new_figure(10, 4, layout="constrained")
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


def draw_comparison(
    curves: Mapping[str, Sequence[Mapping[str, float]]],
    costs: Mapping[str, Mapping[int, float]],
    path: Path,
) -> None:
    """Draws how well runs did over the steps, and what a step costs over the length.

    Args:
        curves: the rows of `metrics.jsonl` of each run.
        costs: seconds of a training step by the length of its sentences, of each run.
        path: a picture file.
    """
    figure = new_figure(10, 4, layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, rows in curves.items():
        points = [(row["step"], row["nll"]) for row in rows if row["split"] == "train"]
        left.plot(*zip(*points, strict=True), label=name)
    left.set(xlabel="step", ylabel="negative log-likelihood (nats per token)", yscale="log")
    for name, seconds in costs.items():
        right.plot([*seconds], [1000 * value for value in seconds.values()], "o-", label=name)
    right.set(xlabel="tokens of a sentence", ylabel="ms of a training step, equal tokens")
    right.set_xscale("log", base=2)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    save(figure, path)

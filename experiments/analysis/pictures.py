"""Pictures of runs: learning curves, cross-attention, and scores of several runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from experiments.files import named_errors
from experiments.training.metrics import read_metrics

MOST_NAMES = 16  # runs that a legend names

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_learning_curve(directory: Path, path: Path) -> None:
    """Draw loss and accuracy over the steps in `metrics.jsonl` of a run."""
    rows = read_metrics(directory)
    figure = _figure(10, 4)
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
    _save(figure, path)


def draw_cross_attention(
    weights: np.ndarray,
    source: Sequence[str],
    target: Sequence[str],
    alignment: Sequence[tuple[int, int]],
    path: Path,
) -> None:
    """Draw the cross-attention weights of a sentence pair, one panel for each head.

    Args:
        weights: `[layers, N, T, S]`; row t is of the query that predicts target token t.
        source: S tokens.
        target: T tokens.
        alignment: gold (source, target) positions, drawn as outlines.
        path: a picture file.
    """
    from matplotlib.patches import Rectangle

    num_layers, num_heads = weights.shape[:2]
    width = 1.6 + 0.33 * len(source) * num_heads
    figure = _figure(width, 1.6 + 0.33 * len(target) * num_layers)
    grid = figure.subplots(num_layers, num_heads, squeeze=False, sharex=True, sharey=True)
    for layer in range(num_layers):
        for head in range(num_heads):
            axes = grid[layer, head]
            image = axes.imshow(weights[layer, head], cmap="Blues", vmin=0, vmax=1, aspect="auto")
            for key, query in alignment:
                cell = (key - 0.45, query - 0.45), 0.9, 0.9
                axes.add_patch(Rectangle(*cell, fill=False, edgecolor="darkorange", linewidth=1.8))
            axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=10)
            axes.set_xticks(range(len(source)), source, rotation=90, fontsize=10)
            axes.set_yticks(range(len(target)), target, fontsize=10)
    figure.colorbar(image, ax=grid, label="attention weight", aspect=30, pad=0.01)
    figure.supxlabel("source token (key)", fontsize=10)
    figure.supylabel("target token that is predicted (query)", fontsize=10)
    title = "Cross-attention" + ("; orange: gold alignment" if alignment else "")
    figure.suptitle(fill(title, width=int(9 * width)), fontsize=12)
    _save(figure, path)


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
    figure = _figure(15 if costs else 10, 5)
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
    _save(figure, path)


def _figure(width: float, height: float) -> "Figure":
    """Return an empty picture, in inches; matplotlib is imported when something is drawn."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: "Figure", path: Path) -> None:
    with named_errors(path):
        figure.savefig(path, dpi=120)

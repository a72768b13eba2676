"""Pictures of runs: learning curves, cross-attention, and scores of several runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from experiments.files import named_errors
from experiments.training.metrics import read_metrics

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
    figure = _figure(10, 4)
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
    _save(figure, path)


def _figure(width: float, height: float) -> "Figure":
    """Return an empty picture, in inches; matplotlib is imported when something is drawn."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: "Figure", path: Path) -> None:
    with named_errors(path):
        figure.savefig(path, dpi=120)

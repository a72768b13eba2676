"""Panels, bars and maps of weights in the colours of the tutorial."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Two colours that colour-blind people can tell apart, and a map that a grey print can show.
BLUE, ORANGE, GREY = "#2166ac", "#d55e00", "#888888"
WEIGHTS = "Blues"


def panels(
    columns: int = 1, rows: int = 1, *, width: float = 4.4, height: float = 2.8
) -> tuple[Figure, list["Axes"]]:
    """Return a figure and the list of its axes; `width` and `height` of a panel are inches."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, [*figure.subplots(rows, columns, squeeze=False).flat]


def bars(axes: "Axes", labels: Sequence[str], values: np.ndarray, *, title: str, unit: str) -> None:
    """Draw a labelled bar for each value; `unit` is the label of the vertical axis."""
    drawn = axes.bar(labels, values, color=BLUE)
    axes.bar_label(drawn, [f"{value:.2f}" for value in np.asarray(values)], fontsize=8)
    axes.margins(y=0.15)
    axes.set(title=title, ylabel=unit)


def weight_map(
    axes: "Axes",
    weights: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    title: str,
    largest: float = 1.0,
    digits: int = 2,
) -> None:
    """Draw weights or scores [T, S] with their numbers; a row is a query, a column is a key."""
    weights = np.asarray(weights)
    axes.imshow(np.maximum(weights, 0), cmap=WEIGHTS, vmin=0, vmax=largest)
    for (row, column), weight in np.ndenumerate(weights):
        color = "white" if weight > 0.6 * largest else "black"
        text = f"{weight:.{digits}f}".replace("-inf", "-∞")
        axes.text(column, row, text, ha="center", va="center", color=color, fontsize=7)
    axes.set_xticks(range(len(keys)), keys, rotation=45, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(len(queries)), queries)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.set(title=title, ylabel="query")
    axes.set_xlabel("key")

"""Pictures of page 2: the steps of one query, and the weights of all queries."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from docs.tutorial.pictures.plots import BLUE, panels, weight_map


def one_query_steps(names: dict[str, Any]) -> Figure:
    """Draw the numbers of each step from the vector of creature to its new vector."""
    creature = names["creature"]
    vector, query = names["sentence"][creature], names["query"][creature]
    steps = [
        ("vector of creature", names["entries"], vector),
        ("query = vector · W_Q", names["kinds"], query),
        ("score = query · key / √4", names["words"], names["scores"]),
        ("weight = softmax(scores)", names["words"], names["weights"]),
        ("sum of weight · value", names["properties"], names["output"]),
        ("vector + sum · W_O", names["entries"], vector + names["change"]),
    ]
    figure, axes = panels(3, 2, width=3.0, height=2.5)
    for number, (axis, (title, labels, values)) in enumerate(zip(axes, steps, strict=True), 1):
        rows = np.arange(len(labels))
        drawn = axis.barh(rows, values, color=BLUE)
        axis.bar_label(
            drawn, [f"{value:.2f}".removesuffix(".00") for value in values], padding=2, fontsize=8
        )
        axis.set_yticks(rows, labels)
        axis.invert_yaxis()
        axis.margins(x=0.25)
        axis.set_title(f"{number}. {title}")
    return figure


def one_query_grid(names: dict[str, Any]) -> Figure:
    """Draw the weights of each pair of words."""
    figure, (axes,) = panels(width=6, height=5)
    title = "weights: how much each word takes from each other word"
    weight_map(axes, names["grid"], names["words"], names["words"], title=title, largest=0.5)
    return figure


PICTURES = (one_query_steps, one_query_grid)

"""Pictures of page 12: weights beside norms of values, and two layers."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from docs.tutorial.pictures.diagram import Diagram
from docs.tutorial.pictures.plots import BLUE, GREY, ORANGE, bars, panels

# A colour, and the same faded.
BLUES, ORANGES = (BLUE, "#c6d6e8"), (ORANGE, "#f5d3bd")


def explanation_norms(names: dict[str, Any]) -> Figure:
    """Draw the weights of three words, and the norms of what they contribute."""
    figure, (left, right) = panels(2, width=3.2, height=2.6)
    words = ["word 1", "word 2", "word 3"]
    bars(left, words, names["weights"], title="weight", unit="weight")
    bars(right, words, names["effect"], title="norm of weight · value", unit="norm")
    return figure


def explanation_rollout(names: dict[str, Any]) -> str:
    """Draw how blue reaches roamed through creature in two layers."""
    words = names["words"]
    diagram = Diagram(600, 230)
    for level, title in enumerate(("words", "after layer 1", "after layer 2")):
        y = 180 - 76 * level
        diagram.text(12, y + 18, title, anchor="start")
        for column, word in enumerate(words):
            diagram.box(120 + 110 * column, y, 96, 28, GREY, word, filled=False)
    layers = [(names[layer] + names["identity"]) / 2 for layer in ("first", "second")]
    reaches = np.eye(4)[words.index("roamed")]
    needed = [reaches @ layers[1], reaches]  # share of roamed in each query of both layers
    for faded in (True, False):
        for level, layer in enumerate(layers):
            for query, key in np.argwhere(layer):
                if faded == (needed[level][query] == 0):
                    color = (BLUES if query == key else ORANGES)[faded]
                    ends = (168 + 110 * key, 180 - 76 * level, 168 + 110 * query, 134 - 76 * level)
                    diagram.line(*ends, arrow=True, color=color)
    diagram.text(
        300,
        14,
        "blue: residual, one half; orange: weight, one half; faded: no part of roamed",
    )
    return diagram.svg()


PICTURES = (explanation_norms, explanation_rollout)

"""Pictures of page 7: a block, its activations, and a language model."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from docs.tutorial.pictures.diagram import Diagram
from docs.tutorial.pictures.plots import BLUE, GREY, ORANGE, panels


def block_diagram(names: dict[str, Any]) -> str:
    """Draw a pre-norm block from left to right, with its two residual connections."""
    del names
    diagram = Diagram(760, 150)
    diagram.text(24, 95, "x")
    diagram.line(36, 90, 76, 90, arrow=True)
    for left, text, color in ((76, "attention", ORANGE), (416, "feed-forward\nnetwork", BLUE)):
        diagram.box(left, 70, 80, 40, GREY, "layer norm", filled=False)
        diagram.line(left + 80, 90, left + 110, 90, arrow=True)
        diagram.box(left + 110, 70, 104, 40, color, text)
        diagram.line(left + 214, 90, left + 248, 90, arrow=True)
        diagram.circle(left + 260, 90, 12, "+")
        diagram.line(left - 20, 90, left - 20, 34, left + 260, 34, left + 260, 78, arrow=True)
        diagram.text(left + 120, 26, "residual: x + sublayer(norm(x))")
        diagram.line(left + 272, 90, left + 340 if left == 76 else left + 306, 90, arrow=True)
    diagram.text(740, 95, "x")
    diagram.text(238, 134, "between words", color=ORANGE)
    diagram.text(578, 134, "each word alone", color=BLUE)
    return diagram.svg()


def block_activations(names: dict[str, Any]) -> Figure:
    """Draw both activations."""
    figure, (axis,) = panels(width=4.4, height=2.8)
    z = np.linspace(-3, 3, 200)
    axis.plot(z, names["relu"](z), color=ORANGE, label="ReLU: max(z, 0)")
    axis.plot(z, names["gelu"](z), color=BLUE, label="GELU: z · Φ(z)")
    axis.set(xlabel="z", ylabel="φ(z)", title="activations")
    axis.legend()
    return figure


def block_model(names: dict[str, Any]) -> str:
    """Draw a language model from the words to the prediction."""
    words = names["words"][:4]
    diagram = Diagram(560, 360)
    steps = [
        (290, "vectors of the table + positions [T, D]", GREY, False),
        (238, "block 1", ORANGE, True),
        (186, "block 2", ORANGE, True),
        (134, "layer norm", GREY, False),
        (82, "scores of all words, table transposed [T, V]", BLUE, True),
    ]
    for y, text, color, filled in steps:
        diagram.box(60, y, 440, 32, color, text, filled=filled)
    for column, word in enumerate(words):
        x = 115 + 110 * column
        diagram.text(x, 350, word)
        for bottom in (338, 290, 238, 186, 134, 82):
            diagram.line(x, bottom, x, bottom - (16 if bottom == 338 else 20), arrow=True)
        following = names["words"][column + 1]
        diagram.text(x, 54, following, bold=True)
    diagram.text(280, 22, "trained to predict, at each place, the next word:")
    return diagram.svg()


PICTURES = (block_diagram, block_activations, block_model)

"""Pictures of page 8: the gradient, the loss of a training run, and the learned weights."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from docs.tutorial.pictures.diagram import Diagram
from docs.tutorial.pictures.plots import BLUE, GREY, ORANGE, panels, weight_map


def learning_gradient(names: dict[str, Any]) -> str:
    """Draw attention from left to right, and its gradient from right to left."""
    del names
    diagram = Diagram(760, 254)
    boxes = {
        "x": (10, 100, 44),
        "query\nx · W_Q": (100, 30, 90),
        "key\nx · W_K": (100, 100, 90),
        "value\nx · W_V": (100, 170, 90),
        "scores\nq · k / √d": (260, 65, 100),
        "weights\nsoftmax": (420, 65, 90),
        "output\nsum of w · v": (570, 100, 100),
        "loss": (705, 100, 50),
    }
    for text, (x, y, width) in boxes.items():
        learned = "W_" in text
        diagram.box(x, y, width, 44, BLUE if learned else GREY, text, filled=learned)
    for line in (
        (54, 122, 100, 52), (54, 122, 100, 122), (54, 122, 100, 192), (190, 52, 260, 82),
        (190, 122, 260, 92), (360, 87, 420, 87), (510, 87, 570, 117), (190, 192, 570, 132),
        (670, 122, 705, 122),
    ):  # fmt: skip
        diagram.line(*line, arrow=True)
    for line in (
        (705, 136, 670, 136), (620, 144, 620, 205, 190, 205), (620, 100, 620, 42, 465, 42, 465, 65),
        (420, 100, 360, 100), (300, 65, 300, 40, 190, 40), (300, 109, 300, 136, 190, 136),
    ):  # fmt: skip
        diagram.line(*line, arrow=True, color=ORANGE)
    diagram.text(690, 162, "gradient g", color=ORANGE)
    diagram.text(405, 222, "w · g: a value learns by its weight", color=ORANGE)
    diagram.text(542, 34, "g · v", color=ORANGE)
    diagram.text(312, 34, "w · (g · v - g · o): 0 if saturated", color=ORANGE)
    diagram.text(340, 246, "grey: the computation; orange: its derivative, back to the matrices")
    return diagram.svg()


def learning_curve(names: dict[str, Any]) -> Figure:
    """Draw learning rate and loss, with and without warm-up."""
    figure, (left, right) = panels(2, width=4.2, height=2.9)
    for (label, rate), color in zip(names["rates"].items(), (BLUE, ORANGE), strict=True):
        left.plot(rate, color=color, label=label)
        right.plot(names["runs"][label][1], color=color, label=label)
    left.set(xlabel="step", ylabel="learning rate", title="learning rate")
    right.axhline(np.log(12), color=GREY, linestyle=":", label="uniform guess, log 12")
    right.set(xlabel="step", ylabel="loss, nats per word", title="loss")
    left.legend()
    right.legend()
    return figure


def learning_attention(names: dict[str, Any]) -> Figure:
    """Draw the weights of the cross-attention of one sentence."""
    figure, (axis,) = panels(width=4.6, height=4.2)
    source = [f"{token}" for token in np.asarray(names["source"][0])]
    target = [f"predicts {token}" for token in np.asarray(names["target"][0])]
    title = "cross-attention, mean of heads and layers"
    weight_map(axis, names["cross"], target, source, title=title)
    axis.set(xlabel="key: source word", ylabel="query: place of the target")
    return figure


PICTURES = (learning_gradient, learning_curve, learning_attention)

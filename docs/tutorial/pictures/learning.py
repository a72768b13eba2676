"""Pictures of page 8: the gradient, the loss of a training run, and the learned weights."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from docs.tutorial.pictures.diagram import Diagram
from docs.tutorial.pictures.plots import BLUE, GREY, ORANGE, panels, weight_map


def learning_gradient(names: dict[str, Any]) -> str:
    """Draw attention from left to right, and its gradient from right to left."""
    del names
    diagram = Diagram(870, 264)
    boxes = {
        "x": (10, 110, 44),
        "query\nx · W_Q": (150, 40, 90),
        "key\nx · W_K": (150, 110, 90),
        "value\nx · W_V": (150, 180, 90),
        "scores\nq · k / √d": (320, 75, 100),
        "weights\nsoftmax": (510, 75, 90),
        "output\nsum of w · v": (680, 110, 100),
        "loss": (815, 110, 50),
    }
    for text, (x, y, width) in boxes.items():
        learned = "W_" in text
        diagram.box(x, y, width, 44, BLUE if learned else GREY, text, filled=learned)
    for line in (
        (54, 132, 150, 66), (54, 132, 150, 127), (54, 132, 150, 198), (240, 62, 320, 92),
        (240, 132, 320, 102), (420, 92, 510, 92), (600, 97, 680, 127), (240, 202, 680, 142),
        (780, 127, 815, 127),
    ):  # fmt: skip
        diagram.line(*line, arrow=True)
    for line in (
        (815, 145, 780, 145), (730, 154, 730, 215, 240, 215), (730, 110, 730, 52, 555, 52, 555, 75),
        (510, 106, 420, 106), (370, 75, 370, 50, 240, 50), (370, 119, 370, 146, 240, 146),
        (150, 50, 32, 50, 32, 110), (150, 146, 54, 146), (150, 215, 32, 215, 32, 154),
    ):  # fmt: skip
        diagram.line(*line, arrow=True, color=ORANGE)
    for x, y, text in (
        (798, 172, "gradient g"), (485, 232, "w · g: a value learns by its weight"),
        (642, 44, "g · v"), (490, 136, "w · (g · v - g · o): 0 if saturated"),
        (305, 42, "· k / √d"), (305, 164, "· q / √d"),
        (91, 42, "· W_Qᵀ"), (125, 163, "· W_Kᵀ"), (91, 232, "· W_Vᵀ"),
    ):  # fmt: skip
        diagram.text(x, y, text, color=ORANGE)
    caption = "grey: the computation; orange: the gradients, back to the matrices and to x"
    diagram.text(435, 258, caption)
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
    target = [f"predicts {token}" for token in source[::-1]]
    title = "cross-attention, mean of heads and layers"
    weight_map(axis, names["cross"], target, source, title=title)
    axis.set(xlabel="key: source word", ylabel="query: place of the target")
    return figure


PICTURES = (learning_gradient, learning_curve, learning_attention)

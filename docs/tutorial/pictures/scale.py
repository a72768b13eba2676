"""Pictures of page 3: saturated weights, their derivative, and products of several widths."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from docs.tutorial.pictures.plots import BLUE, ORANGE, bars, panels


def scale_saturation(names: dict[str, Any]) -> Figure:
    """Draw the weights of the six scores, times 1, 10 and 100."""
    scores, softmax = names["scores"], names["jax"].nn.softmax
    figure, axes = panels(3, width=3.3, height=2.6)
    labels = [f"{score:.2f}" for score in scores]
    for axis, factor in zip(axes, (1, 10, 100), strict=True):
        title = "weights of the scores" if factor == 1 else f"of {factor} times the scores"
        bars(axis, labels, softmax(factor * scores), title=title, unit="weight")
        axis.set(ylim=(0, 1.1), xlabel="score")
    return figure


def scale_gradient(names: dict[str, Any]) -> Figure:
    """Draw a weight beside a score of 0, and its derivative."""
    del names
    figure, (axis,) = panels(width=5, height=3)
    score = np.linspace(-10, 10, 200)
    weight = 1 / (1 + np.exp(-score))
    axis.plot(score, weight, color=BLUE, label="weight w")
    axis.plot(score, weight * (1 - weight), color=ORANGE, label="derivative w (1 - w)")
    axis.set(xlabel="score, beside another score of 0", ylabel="weight, and derivative")
    axis.set_title("saturated on both sides: no gradient")
    axis.legend(loc="center left")
    return figure


def scale_histograms(names: dict[str, Any]) -> Figure:
    """Draw the products of three widths, before and after the division by the root."""
    figure, axes = panels(2, width=4.2, height=2.9)
    titles = ("query · key", "query · key / √d")
    colors = ("#92c5de", BLUE, ORANGE)
    for axis, title in zip(axes, titles, strict=True):
        for (width, products), color in zip(names["products"].items(), colors, strict=True):
            values = np.asarray(products) / (1 if title == titles[0] else np.sqrt(width))
            label = f"d = {width}: deviation {values.std():.0f}"
            bin_width = 2 if title == titles[0] else 0.5
            axis.hist(
                values, np.arange(-48, 48.1, bin_width), density=True, histtype="step", color=color,
                label=label,
            )  # fmt: skip
        limit = 48 if title == titles[0] else 5
        axis.set(xlabel="score", ylabel="density", title=title, xlim=(-limit, limit), ylim=(0, 0.6))
        axis.legend(fontsize=8)
    return figure


PICTURES = (scale_saturation, scale_gradient, scale_histograms)

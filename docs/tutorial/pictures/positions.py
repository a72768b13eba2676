"""Pictures of page 6: sinusoids as a map and as hands of a clock, and weights by distance."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from docs.tutorial.pictures.plots import BLUE, ORANGE, panels


def positions_sinusoids(names: dict[str, Any]) -> Figure:
    """Draw the vectors of 48 positions, and two pairs as points on a circle."""
    vectors = names["sinusoids"](range(48), 16)
    figure, axes = panels(3, width=3.2, height=3.0)
    shown = axes[0].imshow(vectors.T, cmap="PuOr", aspect="auto", vmin=-1, vmax=1)
    figure.colorbar(shown, ax=axes[0], label="value", ticks=[-1, 0, 1])
    axes[0].set(xlabel="position", ylabel="entry", title="PE of width 16")
    for axis, pair, omega in ((axes[1], 0, "1"), (axes[2], 2, "0.1")):
        sin, cos = vectors[:7, 2 * pair], vectors[:7, 2 * pair + 1]
        circle = np.linspace(0, 2 * np.pi, 100)
        axis.plot(np.cos(circle), np.sin(circle), color="#dddddd")
        axis.plot(cos, sin, "o", color=BLUE)
        for position in (0, 3, 6):
            axis.annotate(f"{position}", (1.14 * cos[position] - 0.04, 1.14 * sin[position] - 0.05))
        axis.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal")
        axis.set(xlabel=f"entry {2 * pair + 1}, cosine", ylabel=f"entry {2 * pair}, sine")
        axis.set_title(f"positions 0 to 6, ω = {omega}")
    return figure


def positions_near(names: dict[str, Any]) -> Figure:
    """Draw the weights of two nouns without and with a slope."""
    words, places = names["words"], np.arange(8)
    figure, axes = panels(2, width=4.2, height=2.8)
    for axis, slope in zip(axes, (0, 1), strict=True):
        weights = names["weights_of"](slope)
        for shift, noun, color in ((-0.2, "creature", ORANGE), (0.2, "forest", BLUE)):
            row = weights[words.index(noun)]
            axis.bar(places + shift, row, 0.4, color=color, label=f"query {noun}")
        axis.set_xticks(places, words, rotation=40, ha="right", rotation_mode="anchor")
        title = "all distances alike" if slope == 0 else "minus 1 for each word of distance"
        axis.set(ylim=(0, 1), ylabel="weight", xlabel="key", title=title)
        axis.legend(loc="upper left")
    return figure


PICTURES = (positions_sinusoids, positions_near)

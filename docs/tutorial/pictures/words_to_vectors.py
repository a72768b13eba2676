"""Pictures of page 1: angles, an analogy as a parallelogram, and *bank* in two sentences."""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from docs.tutorial.pictures.plots import BLUE, GREY, ORANGE, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def words_to_vectors_angles(names: dict[str, Any]) -> Figure:
    """Draw vectors of two entries, and the angle between two of them."""
    del names
    figure, (axes,) = panels(width=4.6, height=3.4)
    vectors = {"man": (0, 0.9), "king": (0.9, 0.9), "crown": (0.9, 0)}
    for word, vector in vectors.items():
        _arrow(axes, (0, 0), vector, BLUE)
        axes.annotate(word, vector, xytext=(6, 4), textcoords="offset points", color=BLUE)
    angle = np.linspace(np.pi / 4, np.pi / 2, 30)
    axes.plot(0.5 * np.cos(angle), 0.5 * np.sin(angle), color=ORANGE)
    axes.annotate("45°: cosine 0.71", (0.05, 0.68), color=ORANGE)
    angle = np.linspace(0, np.pi / 2, 40)
    axes.plot(0.15 * np.cos(angle), 0.15 * np.sin(angle), color=GREY)
    axes.annotate("90°: cosine 0", (0.2, 0.06), color=GREY)
    axes.set(xlim=(-0.1, 1.2), ylim=(-0.1, 1.1), aspect="equal", xlabel="royal", ylabel="male")
    axes.set_title("the entries royal and male")
    return figure


def words_to_vectors_analogy(names: dict[str, Any]) -> Figure:
    """Draw king - man + woman in the plane of the entries royal and female minus male."""
    del names
    figure, (axes,) = panels(width=4.6, height=3.4)
    points = {"man": (0, -0.9), "king": (0.9, -0.9), "woman": (0, 0.9), "queen": (0.9, 0.9)}
    for word, point in points.items():
        axes.plot(*point, "o", color=GREY)
        side = -46 if point[0] == 0 else 10
        axes.annotate(word, point, xytext=(side, -3), textcoords="offset points")
    for start, end in (("man", "king"), ("woman", "queen")):
        _arrow(axes, points[start], points[end], ORANGE)
    for start, end in (("man", "woman"), ("king", "queen")):
        axes.plot(*zip(points[start], points[end], strict=True), "--", color=GREY)
    axes.annotate("king - man", (0.45, -0.9), xytext=(-24, 6), textcoords="offset points")
    axes.annotate(
        "the same, added to woman", (0.45, 0.9), xytext=(-56, 6), textcoords="offset points"
    )
    axes.set(xlim=(-0.4, 1.3), ylim=(-1.3, 1.4), xlabel="royal", ylabel="female - male")
    axes.set_title("king - man + woman = queen")
    return figure


def words_to_vectors_bank(names: dict[str, Any]) -> Figure:
    """Draw the vector of bank in the table and in two sentences, in water and money."""
    figure, (axes,) = panels(width=5, height=3.6)
    for word in ("river", "deposit"):
        axes.plot(*names["topics"][word][:2], "o", color=GREY)
        axes.annotate(word, names["topics"][word][:2], xytext=(7, -3), textcoords="offset points")
    start = names["topics"]["bank"][:2]
    axes.plot(*start, "o", color="black")
    axes.annotate("bank in the table", start, xytext=(-20, -15), textcoords="offset points")
    for vectors, place, color, text in (
        (names["money"], 4, ORANGE, "bank … to deposit money"),
        (names["river"], 1, BLUE, "the bank of the river"),
    ):
        end = names["in_context"](vectors)[place][:2]
        _arrow(axes, start, end, color)
        label = f"{text}: ({end[0]:.2f}, {end[1]:.2f})"
        axes.annotate(label, end, xytext=(6, 3), textcoords="offset points", color=color)
    axes.set(xlim=(-0.2, 5.8), ylim=(-0.3, 3.4), xlabel="water", ylabel="money")
    axes.set_title("bank before and after attention")
    return figure


def _arrow(axes: "Axes", start: tuple[float, float], end: tuple[float, float], color: str) -> None:
    style = {"arrowstyle": "-|>", "color": color, "lw": 2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style)


PICTURES = (words_to_vectors_angles, words_to_vectors_analogy, words_to_vectors_bank)

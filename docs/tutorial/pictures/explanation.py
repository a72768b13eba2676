"""Pictures of page 12: weights beside norms of values, and two layers."""

from typing import Any

from matplotlib.figure import Figure

from docs.tutorial.pictures.diagram import Diagram
from docs.tutorial.pictures.plots import BLUE, GREY, ORANGE, bars, panels


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
    diagram = Diagram(560, 230)
    for level, title in enumerate(("words", "after layer 1", "after layer 2")):
        y = 180 - 76 * level
        diagram.text(12, y + 18, title, anchor="start")
        for column, word in enumerate(words):
            diagram.box(120 + 110 * column, y, 96, 28, GREY, word, filled=False)
    for level, query, key in ((0, 2, 1), (1, 3, 2)):
        y = 180 - 76 * level
        diagram.line(168 + 110 * key, y, 168 + 110 * query, y - 46, arrow=True, color=ORANGE)
    for level in (0, 1):
        for column in range(4):
            x = 168 + 110 * column
            diagram.line(x, 180 - 76 * level, x, 134 - 76 * level, arrow=True, color=BLUE)
    diagram.text(280, 14, "blue: residual, one half; orange: the largest weight, the other half")
    return diagram.svg()


PICTURES = (explanation_norms, explanation_rollout)

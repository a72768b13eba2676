"""Pictures of page 9: the bottleneck, and the additive score."""

from typing import Any

from matplotlib.figure import Figure

from docs.tutorial.pictures.diagram import Diagram
from docs.tutorial.pictures.plots import BLUE, GREY, ORANGE, panels


def recurrent_bottleneck(names: dict[str, Any]) -> Figure:
    """Draw the accuracy by length of both models."""
    figure, (axis,) = panels(width=5.2, height=3.2)
    lengths = range(2, names["LONGEST"] + 1)
    titles = {"none": ("without attention", ORANGE), "additive": ("with additive attention", BLUE)}
    for name, (label, color) in titles.items():
        accuracy = [100 * value for value in names["accuracy"][name]]
        axis.plot(lengths, accuracy, "o-", color=color, label=label)
    axis.axhline(10, color=GREY, linestyle=":", label="guess: 1 of 10 words")
    axis.set(xlabel="words of the sentence", ylabel="words copied correctly, %", ylim=(0, 105))
    axis.set_title("copying: a GRU with a state of 32 numbers")
    axis.legend(loc="lower left", bbox_to_anchor=(0, 0.12))
    return figure


def recurrent_additive(names: dict[str, Any]) -> str:
    """Draw the small network that computes an additive score."""
    del names
    diagram = Diagram(760, 170)
    rows = ((30, "decoder state s", "W_s · s"), (106, "encoder state h", "U_h · h"))
    for y, state, projected in rows:
        diagram.box(10, y, 130, 36, GREY, state, filled=False)
        diagram.line(140, y + 18, 200, y + 18, arrow=True)
        diagram.box(200, y, 70, 36, BLUE, projected)
    diagram.circle(340, 86, 13, "+")
    diagram.line(270, 48, 330, 78, arrow=True)
    diagram.line(270, 124, 330, 94, arrow=True)
    diagram.line(353, 86, 400, 86, arrow=True)
    diagram.box(400, 68, 70, 36, GREY, "tanh", filled=False)
    diagram.line(470, 86, 520, 86, arrow=True)
    diagram.box(520, 68, 90, 36, ORANGE, "v · tanh(…)")
    diagram.line(610, 86, 650, 86, arrow=True)
    diagram.text(700, 82, "score a,")
    diagram.text(700, 98, "one number")
    diagram.text(365, 156, "learned: W_s, U_h and v", color=GREY)
    return diagram.svg()


PICTURES = (recurrent_bottleneck, recurrent_additive)

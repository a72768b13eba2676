"""Pictures of page 11: five rules of sampling, a tree of beams, and the cache."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from docs.tutorial.pictures.diagram import Diagram
from docs.tutorial.pictures.plots import BLUE, GREY, ORANGE, panels


def generation_sampling(names: dict[str, Any]) -> Figure:
    """Draw the probabilities of the next word under each rule."""
    figure, axes = panels(5, width=2.1, height=2.7)
    for axis, (title, scores) in zip(axes, names["changed"].items(), strict=True):
        probabilities = names["softmax"](scores)
        drawn = axis.barh(names["words"], probabilities, color=BLUE)
        labels = [
            f"{probability:.2f}" if np.isfinite(score) else "not kept"
            for probability, score in zip(probabilities, scores, strict=True)
        ]
        axis.bar_label(drawn, labels, padding=2, fontsize=8)
        axis.invert_yaxis()
        axis.set(xlim=(0, 1.25), xticks=[0, 0.5, 1], title=title, xlabel="probability")
        axis.label_outer()
    return figure


def generation_beams(names: dict[str, Any]) -> str:
    """Draw the tree of prefixes; those that two beams keep are filled."""
    diagram = Diagram(760, 316)
    levels = [[""], [], [], []]
    values = {"": 1.0}
    for level in range(3):
        for prefix in levels[level]:
            for word, probability in names["after"][prefix].items():
                text = f"{prefix} {word}".strip()
                values[text] = values[prefix] * probability
                levels[level + 1].append(text)
    kept = {text for length in (1, 2, 3) for text, _ in names["beam_search"](2, length)}
    place = {"": (40, 158)}
    for level in (1, 2, 3):
        for number, text in enumerate(levels[level]):
            x = 40 + 170 * level
            y = 30 + 256 * (number + 0.5) / len(levels[level])
            place[text] = x, y
            parent = place[text.rpartition(" ")[0]]
            color = BLUE if text in kept else GREY
            diagram.line(parent[0] + (24 if level == 1 else 62), parent[1], x - 62, y, color=color)
    diagram.box(16, 144, 48, 28, GREY, "start", filled=False)
    for text, (x, y) in place.items():
        if text:
            word = text.rpartition(" ")[2]
            color = BLUE if text in kept else GREY
            label = f"{word} {values[text]:.3g}"
            diagram.box(x - 62, y - 13, 124, 26, color, label, filled=text in kept)
    diagram.text(690, 154, "blue: the two")
    diagram.text(690, 172, "beams that are kept")
    diagram.text(380, 306, "the number is the probability of the whole prefix")
    return diagram.svg()


def generation_cache(names: dict[str, Any]) -> str:
    """Draw which words are computed at each of six steps, without and with a cache."""
    del names
    diagram = Diagram(620, 226)
    for left, title, cached in ((30, "without a cache", False), (340, "with a cache", True)):
        diagram.text(left + 105, 20, title, bold=True)
        for step in range(6):
            y = 34 + 26 * step
            for word in range(step + 1):
                computed = not cached or word == step
                color = ORANGE if computed else BLUE
                diagram.box(left + 36 * word, y, 30, 20, color)
            diagram.text(left + 222, y + 15, f"step {step + 1}", anchor="start")
    diagram.text(310, 214, "orange: key and value are computed; blue: they are read from the cache")
    return diagram.svg()


PICTURES = (generation_sampling, generation_beams, generation_cache)

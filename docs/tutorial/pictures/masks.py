"""Pictures of page 4: scores and weights under the causal mask, and four masks."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from attention import masks
from docs.tutorial.pictures.plots import WEIGHTS, panels, weight_map


def masks_causal(names: dict[str, Any]) -> Figure:
    """Draw scores, scores with -∞, and weights."""
    words = names["words"]
    scores = np.asarray(names["query"] @ names["key"].T) / 2
    figure, axes = panels(3, width=3.9, height=3.9)
    weight_map(axes[0], scores, words, words, title="scores", largest=4, digits=0)
    masked = np.where(names["causal"], scores, -np.inf)
    weight_map(axes[1], masked, words, words, title="with the mask", largest=4, digits=0)
    weight_map(axes[2], names["causal_weights"], words, words, title="weights")
    return figure


def masks_four(names: dict[str, Any]) -> Figure:
    """Draw four masks of the sentence."""
    words = names["words"]
    shown = {
        "causal()": masks.causal(),
        "lengths(5)": masks.lengths(np.array(5)),
        "causal() & lengths(5)": masks.causal() & masks.lengths(np.array(5)),
        "window(before=2)": masks.window(before=2),
    }
    figure, axes = panels(4, width=2.9, height=2.9)
    for axis, (title, mask) in zip(axes, shown.items(), strict=True):
        axis.imshow(masks.to_array(mask, 8, 8), cmap=WEIGHTS, vmin=0, vmax=1.4)
        axis.set_xticks(range(8), words, rotation=60, ha="right", rotation_mode="anchor")
        axis.set_yticks(range(8), words)
        axis.set_xticks(np.arange(-0.5, 8), minor=True)
        axis.set_yticks(np.arange(-0.5, 8), minor=True)
        axis.grid(which="minor", color="white")
        axis.tick_params(which="both", length=0)
        axis.set(title=title, xlabel="key", ylabel="query")
    figure.supxlabel("dark: the query may attend to the key", fontsize=9)
    return figure


PICTURES = (masks_causal, masks_four)

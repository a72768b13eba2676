"""Draw the pictures of the tutorial from the numbers that its pages compute.

python -m docs.tutorial.pictures
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from attention import masks, rotary, sinusoidal
from experiments.analysis.figures import COLORS, MARK, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDER = Path(__file__).resolve().parent
Names = dict[str, Any]
BLUE = "#2166ac"


def main() -> None:
    """Run the programs of each page, and draw its picture into the folder `images`."""
    (FOLDER / "images").mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        save(draw(run_page(FOLDER / f"{name}.md")), FOLDER / "images" / name)
        print(f"images/{name}.png")


def run_page(page: Path) -> Names:
    """Run the Python blocks of a page, and return the names that they define."""
    names: Names = {"print": lambda *_: None}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
    return names


def one_query(names: Names) -> Figure:
    """Draw the weights of four words."""
    figure, (axes,) = _panels(1)
    _bars(axes, names["words"], np.asarray(names["weights"])[0], "weights of the query of creature")
    return figure


def scale(names: Names) -> Figure:
    """Draw the weights of small and of large scores."""
    figure, panels = _panels(2)
    labels = [f"{score:.2f}" for score in names["scores"].tolist()]
    for axes, which in zip(panels, ("small", "large"), strict=True):
        title = "weights of the scores" if which == "small" else "weights of 100 times the scores"
        _bars(axes, labels, np.asarray(names[which]), title)
    return figure


def shapes(names: Names) -> Figure:
    """Draw the memory of both implementations."""
    figure, (axes,) = _panels(1)
    lengths = [2**n for n in range(9, 15)]
    for name, color in (("reference", MARK), ("tiled", BLUE)):
        memory = [names["megabytes"](length, name) for length in lengths]
        axes.loglog(lengths, memory, "o-", color=color, label=name)
    axes.set(xlabel="T, words", ylabel="MB for one head", title="memory beside inputs and output")
    axes.legend(fontsize=8)
    return figure


def six_masks(names: Names) -> Figure:
    """Draw six masks of eight positions."""
    del names
    figure, panels = _panels(6, height=2.6)
    segments = jnp.array([0, 0, 0, 1, 1, 1, 1, 1])
    shown = {
        "causal()": masks.causal(),
        "window(before=2, after=2)": masks.window(before=2, after=2),
        "window(before=2)": masks.window(before=2),
        "prefix(3)": masks.prefix(3),
        "lengths(5)": masks.lengths(jnp.array(5)),
        "causal() & segments(of 3 and 5)": masks.causal() & masks.segments(segments, segments),
    }
    for axes, (title, mask) in zip(panels, shown.items(), strict=True):
        _mask(axes, mask, title)
    return figure


def heads(names: Names) -> Figure:
    """Draw the bytes of the cache with 32, 8 and 1 key/value heads."""
    figure, (axes,) = _panels(1)
    sizes = {"32 (one for each query)": 32, "8 (Llama 3 8B)": 8, "1 (multi-query)": 1}
    bytes_of = [names["cache_bytes"](32, number, 128, 8192) / 2**30 for number in sizes.values()]
    _bars(axes, [*sizes], np.array(bytes_of), "GiB for 8,192 tokens, by key/value heads")
    return figure


def positions(names: Names) -> Figure:
    """Draw sinusoidal embeddings, and scores by distance with ALiBi and rotary embeddings."""
    del names
    figure, (left, right) = _panels(2)
    left.imshow(sinusoidal(jnp.arange(48), 48).T, cmap="PuOr", aspect="auto")
    left.set(xlabel="position", ylabel="entry", title="sinusoidal embeddings of width 48")
    distance = jnp.arange(48)
    ones = jnp.ones((48, 1, 32))
    product = (rotary(ones, distance)[:, 0] @ ones[0, 0]) / 32
    right.plot(distance, product, color=BLUE, label="rotary: equal vectors, ÷ width")
    for slope, style in ((1 / 4, "-"), (1 / 32, "--")):
        label = f"ALiBi, slope 1/{round(1 / slope)}"
        right.plot(distance, -slope * distance, style, color=MARK, label=label)
    right.set(xlabel="distance", ylim=(-3, 1.2), title="score by distance")
    right.legend(fontsize=8)
    return figure


def recurrent(names: Names) -> Figure:
    """Draw an additive and a multiplicative score of two numbers."""
    del names
    figure, (axes,) = _panels(1)
    key = np.linspace(-6, 6, 200)
    axes.plot(key, np.tanh(1 + key), color=BLUE, label="additive: tanh(q + k)")
    axes.plot(key, key, color=MARK, label="product: q k")
    axes.set(xlabel="k, for q = 1", ylabel="score", title="scores of one number")
    axes.legend(fontsize=8)
    return figure


def models(names: Names) -> Figure:
    """Draw the masks of an encoder, of a decoder and of both."""
    del names
    figure, panels = _panels(4, height=2.6)
    everything = ~masks.window(0, 0) | masks.window(0, 0)
    titles = ("encoder", "decoder", "both: the decoder", "both: cross-attention")
    for axes, title in zip(panels, titles, strict=True):
        _mask(axes, everything if title in (titles[0], titles[3]) else masks.causal(), title)
    panels[3].set(xlabel="key, of the encoder", ylabel="query, of the decoder")
    return figure


def training(names: Names) -> Figure:
    """Draw the loss, and the weights of the cross-attention."""
    figure, (left, right) = _panels(2)
    left.semilogy(names["losses"], color=BLUE)
    left.set(xlabel="step", ylabel="nats per word", title="loss")
    right.imshow(names["weights"], cmap=COLORS, vmin=0, vmax=1)
    right.set(xlabel="word that is read", ylabel="word that is predicted")
    right.set_title("weights of the cross-attention")
    return figure


def explanation(names: Names) -> Figure:
    """Draw the vector of *bank* before and after attention."""
    figure, (axes,) = _panels(1)
    for word, vector in names["table"].items():
        axes.annotate(word, vector, textcoords="offset points", xytext=(5, -12))
        axes.plot(*vector, "o", color="gray")
    for vectors, color, beside in (
        (names["for_river"], BLUE, "bank beside river"),
        (names["for_money"], MARK, "bank beside teller"),
    ):
        axes.annotate(beside, vectors[-1], textcoords="offset points", xytext=(6, 4), color=color)
        arrow = {"arrowstyle": "->", "color": color, "lw": 2}
        axes.annotate("", vectors[-1].tolist(), names["table"]["bank"], arrowprops=arrow)
    axes.set(xlabel="water", ylabel="money", xlim=(-0.3, 6.5), ylim=(-0.6, 4), aspect="equal")
    axes.set_title("bank before and after attention")
    return figure


PICTURES: dict[str, Callable[[Names], Figure]] = {
    "01_one_query": one_query,
    "02_scale": scale,
    "03_shapes": shapes,
    "04_masks": six_masks,
    "05_heads": heads,
    "06_positions": positions,
    "07_recurrent": recurrent,
    "08_models": models,
    "09_training": training,
    "10_explanation": explanation,
}


def _panels(number: int, height: float = 2.8) -> tuple[Figure, list["Axes"]]:
    columns = min(number, 3 if number == 6 else 4)
    rows = number // columns
    size = (4.6 if number == 1 else 3.4) * min(columns, 2.4), height * rows
    figure = Figure(figsize=size, layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


def _bars(axes: "Axes", labels: list[str], values: np.ndarray, title: str) -> None:
    bars = axes.bar(labels, values, color=BLUE)
    axes.bar_label(bars, [f"{value:.2f}" for value in values.tolist()], fontsize=8)
    axes.margins(y=0.12)
    axes.tick_params(labelsize=8)
    axes.set_title(title, fontsize=10)


def _mask(axes: "Axes", mask: masks.Mask, title: str) -> None:
    rows = [line.split() for line in masks.picture(mask, 8).splitlines()]
    axes.imshow(np.array(rows, int), cmap=COLORS, vmin=0, vmax=1.3)
    axes.set_xticks(np.arange(-0.5, 8), [])
    axes.set_yticks(np.arange(-0.5, 8), [])
    axes.grid(color="white")
    axes.tick_params(length=0)
    axes.set(xlabel="key", ylabel="query")
    axes.set_title(title, fontsize=10)


if __name__ == "__main__":
    main()

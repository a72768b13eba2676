"""Figures of attention, and the files beside them: PNG, SVG with real text, and CSV."""

import csv
import io
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import cycle, product, zip_longest
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from experiments.analysis.collect import CROSS, Attended, AttentionMaps
from experiments.analysis.heads import visible
from experiments.errors import UsageError
from experiments.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# Lightness falls from white to dark blue, so that colour-blind people and a grey print can read it.
COLORS, SIGNED, MARK = "Blues", "PuOr", "#d55e00"
# Colours and shapes that colour-blind people can distinguish (Okabe and Ito 2008).
MARKS = (("#0072b2", "o"), (MARK, "^"), ("#009e73", "s"), ("#cc79a7", "D"))
FORMATS = (".png", ".svg")
TINY = 1e-30  # in place of a largest value of 0
LABELLED = 64  # most tokens of an axis with labels
# Inches: of a token, between panels, for the labels of an axis, for title and colour bar.
CELL, GAP, LABELS, TOP, RIGHT = 0.24, 0.4, 1.1, 0.75, 0.8
# Equal figures are equal files: no date, no version, and ids of SVG elements from a fixed salt.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "attention", "figure.dpi": 100}
METADATA = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}


def draw_example(
    found: Attended, untrained: Attended, folder: Path, layer: int | None, head: int | None
) -> None:
    """Write the maps of an example: all heads of each layer, one head, the mask, and CSV.

    Args:
        found: what the model attends to.
        untrained: the same of an untrained model, for the mask.
        folder: of the files.
        layer: of the head that is drawn alone, from 1; the last one if None.
        head: that is drawn alone, from 1; the first one if None.

    Raises:
        UsageError: a layer or a head out of range, or a model that does not attend.
    """
    if not found.maps:
        raise UsageError("this model has no layer that attends")
    places = {
        kind: maps.index(maps.layers[-1] if layer is None else layer, 1 if head is None else head)
        for kind, maps in found.maps.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    for kind, maps in found.maps.items():
        for place, number in enumerate(maps.layers):
            heads = [(place, head) for head in range(maps.weights.shape[1])]
            save(maps_figure(maps, places=heads), folder / f"{kind}-layer-{number}", FORMATS)
        place, at = places[kind]
        path = folder / f"{kind}-layer-{maps.layers[place]}-head-{at + 1}"
        save(maps_figure(maps, places=[(place, at)]), path, FORMATS)
        draw_mask(visible(untrained.maps[kind], place), maps, maps.layers[place], folder)
        write_csv(maps, folder / f"{kind}.csv")


def maps_figure(
    maps: AttentionMaps,
    *,
    places: Collection[tuple[int, int]] | None = None,
    links: Iterable[tuple[int, int]] = (),
    title: str = "",
) -> "Figure":
    """Draw attention weights with the tokens on both axes, one panel for each head.

    Args:
        maps: of one kind.
        places: (layer, head) in `maps.weights`; all if None.
        links: (source, target) places of a gold alignment, drawn as rings.
        title: text before the usual title.
    """
    if places is None:
        places = [*np.ndindex(*maps.weights.shape[:2])]
    layers = sorted({layer for layer, _ in places})
    columns = max(sum(layer == each for each, _ in places) for layer in layers)
    figure, grid = _grid(maps, len(layers), columns)
    free = {layer: iter(grid[row]) for row, layer in enumerate(layers)}
    links = [*links]
    for layer, head in places:
        axes = next(free[layer])
        image = _panel(axes, maps.weights[layer, head], maps, links)
        axes.set_title(f"layer {maps.layers[layer]}, head {head + 1}", fontsize=9)
    for axes in (axes for rest in free.values() for axes in rest):
        axes.set_axis_off()
    rows = "the token that is predicted" if maps.kind == CROSS else "the token that attends"
    rings = "; rings: gold alignment" if links else ""
    before = f"{title}; " if title else ""
    _finish(figure, image, f"{before}{maps.title}; row: {rows}{rings}")
    return figure


def draw_mask(visible: np.ndarray, maps: AttentionMaps, layer: int, folder: Path) -> None:
    """Draw which keys each query of a layer may attend to.

    Args:
        visible: bool `[T, S]`.
        maps: with the labels.
        layer: its number.
        folder: of the files.
    """
    figure, ((axes,),) = _grid(maps, 1, 1)
    _panel(axes, visible.astype(np.float32), maps, ())
    _finish(figure, None, f"{maps.title}, layer {layer}; dark: may be attended to")
    save(figure, folder / f"{maps.kind}-layer-{layer}-mask", FORMATS)


def draw_attributions(found: Mapping[str, np.ndarray], maps: AttentionMaps, path: Path) -> None:
    """Draw attributions of target tokens to source tokens beside attention, and write them as CSV.

    Args:
        found: a map `[T, S]` for each name; colours are shares of its largest absolute value.
        maps: cross-attention, with the labels.
        path: of the files, without a suffix.
    """
    columns = 4
    figure, grid = _grid(maps, -(-len(found) // columns), columns)
    for axes, (name, values) in zip_longest(grid.ravel(), found.items(), fillvalue=("", None)):
        if values is None:
            axes.set_axis_off()
            continue
        shares = values / max(abs(values).max(), TINY)
        image = axes.imshow(shares, cmap=SIGNED, vmin=-1, vmax=1, aspect="auto")
        axes.set_title(fill(name, int(13 * CELL * len(maps.keys))), fontsize=8)
    _finish(figure, image, "share of the largest value; row: the token that is predicted")
    save(figure, path, FORMATS)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["query", "query token", "key", "key token", *found])
    for query, key in np.ndindex(len(maps.queries), len(maps.keys)):
        places = query + 1, maps.queries[query], key + 1, maps.keys[key]
        writer.writerow([*places, *(f"{values[query, key]:.6f}" for values in found.values())])
    write_whole(path.with_suffix(".csv"), text.getvalue())


def draw_deletion(curves: Mapping[str, np.ndarray], path: Path) -> None:
    """Draw what target tokens lose with 1, 2, … source words less, one curve for each map."""
    figure = new_figure(8, 4.5)
    axes = figure.subplots()
    styles = cycle(product(("-", "--", ":"), MARKS))
    for (name, losses), (line, (color, mark)) in zip(curves.items(), styles, strict=False):
        axes.plot(range(1, len(losses) + 1), losses, line + mark, color=color, label=name)
    axes.set(xlabel="source words that are replaced", ylabel="drop of log-probability (nats)")
    axes.set_xticks(range(1, len(losses) + 1))
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, path, FORMATS)


def write_csv(maps: AttentionMaps, path: Path) -> None:
    """Write one line for each weight; layers, heads and tokens are counted from 1."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["layer", "head", "query", "query token", "key", "key token", "weight"])
    for (layer, head, query, key), weight in np.ndenumerate(maps.weights):
        places = maps.layers[layer], head + 1, query + 1, maps.queries[query], key + 1
        writer.writerow([*places, maps.keys[key], f"{weight:.6f}"])
    write_whole(path, text.getvalue())


def new_figure(width: float, height: float, layout: str | None = "constrained") -> "Figure":
    """Return an empty figure, in inches; matplotlib is imported only where something is drawn."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout)


def save(figure: "Figure", path: Path, formats: Sequence[str] = FORMATS[:1]) -> None:
    """Write a figure; equal figures are equal bytes."""
    for suffix in formats:
        write_whole(path.with_suffix(suffix), rendered(figure, suffix))


def rendered(figure: "Figure", suffix: str, dpi: int = 120) -> bytes:
    """Return the content of the file of a figure, whose name has this suffix."""
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from")  # the SVG has it as text
        figure.savefig(content, format=suffix[1:], dpi=dpi, metadata=METADATA[suffix])
    return content.getvalue()


def _grid(maps: AttentionMaps, rows: int, columns: int) -> tuple["Figure", np.ndarray]:
    """Return a figure and panels `[rows, columns]` of the size that the tokens need.

    A constrained layout would take a second for each figure.
    """
    cells, across = (max(CELL * len(labels), 1) for labels in (maps.queries, maps.keys))
    width = LABELS + columns * across + (columns - 1) * GAP + RIGHT
    height = LABELS + rows * cells + (rows - 1) * GAP + TOP
    figure = new_figure(width, height, layout=None)
    grid = figure.subplots(rows, columns, squeeze=False)
    for (row, column), axes in np.ndenumerate(grid):
        for axis, labels, turn, is_outer in (
            (axes.xaxis, maps.keys, 90, row == rows - 1),
            (axes.yaxis, maps.queries, 0, column == 0),
        ):
            if not is_outer:
                axis.set_visible(False)
            elif len(labels) <= LABELLED:
                # A label with dollar signs is not mathematics.
                text = {"rotation": turn, "fontsize": 8, "parse_math": False}
                axis.set_ticks(range(len(labels)), labels, **text)
    figure.subplots_adjust(
        left=LABELS / width,
        right=1 - RIGHT / width,
        bottom=LABELS / height,
        top=1 - TOP / height,
        wspace=GAP / across,
        hspace=GAP / cells,
    )
    return figure, grid


def _panel(
    axes: "Axes", weights: np.ndarray, maps: AttentionMaps, links: Sequence[tuple[int, int]]
) -> "AxesImage":
    image = axes.imshow(weights, cmap=COLORS, vmin=0, vmax=1, aspect="auto")
    for source, target in links:
        axes.plot(source, target, "o", mfc="none", mec=MARK, ms=7)
    return image


def _finish(figure: "Figure", image: "AxesImage | None", title: str) -> None:
    """Add a title in lines of about 13 characters an inch, and the colour bar of an image."""
    width, height = figure.get_size_inches()
    figure.suptitle(fill(title, int(13 * width)), fontsize=9)
    if image is None:
        return
    bar = figure.add_axes((1 - 0.65 / width, LABELS / height, 0.12 / width, 0.4))
    figure.colorbar(image, cax=bar)
    bar.tick_params(labelsize=7)

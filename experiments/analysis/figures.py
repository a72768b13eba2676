"""Figures of attention and of training: PNG and SVG with real text; and tables of numbers."""

import csv
import io
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments.analysis.collect import CROSS, AttentionMaps, title_of
from experiments.errors import UsageError
from experiments.files import write_whole
from experiments.metrics import read_metrics
from experiments.records import markdown_table

# Lightness falls from white to dark blue, so that colour-blind people and a grey print can read it.
COLORS, SIGNED, MARK = "Blues", "PuOr", "#d55e00"
FORMATS = (".png", ".svg")
TINY = 1e-30  # in place of a largest value of 0
LABELLED = 64  # most tokens of an axis with labels
MOST_NAMES = 16  # runs that a legend names
NLL = "negative log-likelihood (nats per token)"
# Inches: of a token, between panels, for the labels of an axis, for title and colour bar.
CELL, GAP, LABELS, TOP, RIGHT = 0.24, 0.4, 1.2, 0.75, 0.9
# Equal figures are equal files: no date, no version, and ids of SVG elements from a fixed salt.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "attention", "figure.dpi": 100}
METADATA = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
Rows = Sequence[Mapping[str, Any]]  # of a table


def draw_example(
    attention: Mapping[str, AttentionMaps],
    folder: Path,
    layer: int | None = None,
    head: int | None = None,
) -> None:
    """Write the attention of an example: pictures of each layer, and all weights as CSV.

    With a layer or a head, counted from 1, pictures of this head alone are added; the other one is
    the last layer or the first head. A UsageError names a head that a kind of attention lacks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for kind, maps in attention.items():
        heads, title = _heads(maps), title_of(kind)
        if layer or head:
            name = f"layer {layer or maps.layers[-1]}, head {head or 1}"
            if name not in heads:
                raise UsageError(f"{title} has heads up to {[*heads][-1]}, got {name}")
            path = folder / f"{kind}-{name.replace(', ', '-').replace(' ', '-')}"
            save(_panels({name: heads[name]}, maps, title), path, FORMATS)
        for number, weights in zip(maps.layers, maps.weights, strict=True):
            of_layer = maps._replace(layers=[number], weights=weights[None])
            save(maps_figure(of_layer), folder / f"{kind}-layer-{number}", FORMATS)
        write_maps(heads, maps, folder / f"{kind}.csv")


def maps_figure(maps: AttentionMaps, *, links: Collection[tuple[int, int]] = ()) -> Figure:
    """Draw attention weights with the tokens on both axes; rows are layers, columns are heads.

    Rings are drawn at `links`, the (source, target) indices of a gold alignment.
    """
    title = title_of(maps.kind) + ("; rings: gold alignment" if links else "")
    figure = _panels(_heads(maps), maps, title, columns=maps.weights.shape[1])
    for axes in figure.axes[:-1]:  # the last one is the colour bar
        for source, target in links:
            axes.plot(source, target, "o", mfc="none", mec=MARK, ms=7)
    return figure


def draw_attributions(values: Mapping[str, np.ndarray], maps: AttentionMaps, path: Path) -> None:
    """Draw attributions `[T, S]` by their names, and write them as CSV.

    Colours are shares of the largest absolute value of each; `maps` of cross-attention has labels.
    """
    shares = {name: map_ / max(abs(map_).max(), TINY) for name, map_ in values.items()}
    figure = _panels(shares, maps, "attributions beside attention", columns=4, is_signed=True)
    save(figure, path, FORMATS)
    write_maps(values, maps, path.with_suffix(".csv"))


def _heads(maps: AttentionMaps) -> dict[str, np.ndarray]:
    return {
        f"layer {layer}, head {head}": weights
        for layer, heads in zip(maps.layers, maps.weights, strict=True)
        for head, weights in enumerate(heads, start=1)
    }


def write_maps(values: Mapping[str, np.ndarray], maps: AttentionMaps, path: Path) -> None:
    """Write one line for each query and key, with a column for each map; counted from 1."""
    rows = [
        {
            **{"query": query + 1, "query token": maps.queries[query]},
            **{"key": key + 1, "key token": maps.keys[key]},
            **{name: f"{map_[query, key]:.6f}" for name, map_ in values.items()},
        }
        for query, key in np.ndindex(len(maps.queries), len(maps.keys))
    ]
    write_whole(path, as_csv(rows))


def draw_learning_curve(directory: Path, path: Path) -> None:
    """Draw loss and accuracy over the steps in `metrics.jsonl` of a run."""
    rows = read_metrics(directory)
    lines = {"train": ("train", rows), "validation": ("validation", rows)}
    _draw_curves({"nll": NLL, "accuracy": "token accuracy"}, lines, path)


def draw_runs(runs: Mapping[str, Rows], path: Path) -> None:
    """Draw the training loss of several runs, given the rows of `metrics.jsonl` of each."""
    _draw_curves({"nll": NLL}, {name: ("train", rows) for name, rows in runs.items()}, path)


def _draw_curves(
    panels: Mapping[str, str], lines: Mapping[str, tuple[str, Rows]], path: Path
) -> None:
    """Draw a panel for each metric with its label; each named line shows one split of rows."""
    figure = Figure(figsize=(2 + 4 * len(panels), 4), layout="constrained")
    for number, (metric, label) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), number)
        for name, (split, rows) in lines.items():
            points = [(row["step"], row[metric]) for row in rows if row["split"] == split]
            if points:
                axes.plot(*zip(*points, strict=True), marker=".", label=name)
        axes.set(xlabel="step", ylabel=label, xlim=(0, None))
        axes.grid(alpha=0.3)
        if len(lines) <= MOST_NAMES:
            axes.legend(fontsize=8)
        if label == NLL:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
    save(figure, path)


def save(figure: Figure, path: Path, formats: Sequence[str] = FORMATS[:1]) -> None:
    """Write a figure; equal figures are equal bytes."""
    for suffix in formats:
        content = io.BytesIO()
        with matplotlib.rc_context(STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph .* missing from")  # the SVG has it as text
            figure.savefig(content, format=suffix[1:], dpi=120, metadata=METADATA[suffix])
        write_whole(path.with_suffix(suffix), content.getvalue())


def markdown(rows: Rows, digits: int) -> str:
    """Return rows as a Markdown table, with so many digits after the point of each float."""

    def written(value: object) -> str:
        return f"{value:.{digits}f}" if isinstance(value, float) else str(value)

    return markdown_table([{name: written(value) for name, value in row.items()} for row in rows])


def as_csv(rows: Rows) -> str:
    """Return rows with the same names as CSV, with all digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _panels(
    panels: Mapping[str, np.ndarray],
    maps: AttentionMaps,
    title: str,
    *,
    columns: int = 1,
    is_signed: bool = False,
) -> Figure:
    """Draw maps `[T, S]` by their titles, with so many columns at most, and a colour bar.

    Values are weights, or shares of a largest value with signs. The size is what the tokens need; a
    constrained layout would take a second for each figure.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    cells, across = max(CELL * len(maps.queries), 1), max(CELL * len(maps.keys), 1)
    width = LABELS + columns * across + (columns - 1) * GAP + RIGHT
    height = LABELS + rows * cells + (rows - 1) * GAP + TOP
    figure = Figure(figsize=(width, height))
    figure.subplots_adjust(
        left=LABELS / width,
        right=1 - RIGHT / width,
        bottom=LABELS / height,
        top=1 - TOP / height,
        wspace=GAP / across,
        hspace=GAP / cells,
    )
    names = ("source token", "predicted token") if maps.kind == CROSS else ("key", "query")
    for number, (name, values) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, number + 1)
        colors = SIGNED if is_signed else COLORS
        image = axes.imshow(values, cmap=colors, vmin=-is_signed, vmax=1, aspect="auto")
        axes.set_title(fill(name, max(int(13 * across), 10)), fontsize=8)
        for axis, labels, label, turn, is_outer in (
            (axes.xaxis, maps.keys, names[0], 90, number + columns >= len(panels)),
            (axes.yaxis, maps.queries, names[1], 0, number % columns == 0),
        ):
            axis.set_visible(is_outer)
            axis.set_label_text(label, fontsize=8)
            if is_outer and len(labels) <= LABELLED:
                # A label with dollar signs is not mathematics.
                text = {"rotation": turn, "fontsize": 8, "parse_math": False}
                axis.set_ticks(range(len(labels)), labels, **text)
    figure.suptitle(fill(title, int(13 * width)), fontsize=9)
    bar = figure.add_axes((1 - 0.7 / width, LABELS / height, 0.12 / width, 1 / height))
    unit = "share of the largest value" if is_signed else "weight"
    figure.colorbar(image, cax=bar).set_label(unit, fontsize=7)
    bar.tick_params(labelsize=7)
    return figure

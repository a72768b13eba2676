"""Figures of attention and of training: PNG and SVG with real text; and tables of numbers."""

import csv
import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments.analysis.collect import CROSS, AttentionMaps
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


def draw_example(attention: Mapping[str, AttentionMaps], folder: Path) -> None:
    """Write the attention of an example: a picture of each layer, and all weights as CSV.

    Args:
        attention: by kind.
        folder: of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for kind, maps in attention.items():
        for index, layer in enumerate(maps.layers):
            of_layer = maps._replace(layers=[layer], weights=maps.weights[index : index + 1])
            save(maps_figure(of_layer), folder / f"{kind}-layer-{layer}", FORMATS)
        write_maps(_by_head(maps), maps, folder / f"{kind}.csv")


def maps_figure(maps: AttentionMaps, *, links: Iterable[tuple[int, int]] = ()) -> Figure:
    """Draw attention weights with the tokens on both axes; rows are layers, columns are heads.

    Args:
        maps: of one kind.
        links: (source, target) indices of a gold alignment, drawn as rings.
    """
    title = f"{maps.title}{'; rings: gold alignment' if (links := [*links]) else ''}"
    figure = _panels(_by_head(maps), maps, maps.weights.shape[1], title, "weight")
    for axes in figure.axes[:-1]:  # the last one is the colour bar
        for source, target in links:
            axes.plot(source, target, "o", mfc="none", mec=MARK, ms=7)
    return figure


def draw_attributions(values: Mapping[str, np.ndarray], maps: AttentionMaps, path: Path) -> None:
    """Draw attributions of target tokens to source tokens beside attention, and write them as CSV.

    Args:
        values: a map `[T, S]` for each name; colours are shares of its largest absolute value.
        maps: cross-attention, with the labels.
        path: of the files, without a suffix.
    """
    shares = {name: each / max(abs(each).max(), TINY) for name, each in values.items()}
    title, unit = "attributions beside attention", "share of the largest value"
    save(_panels(shares, maps, 4, title, unit, lowest=-1), path, FORMATS)
    write_maps(values, maps, path.with_suffix(".csv"))


def _by_head(maps: AttentionMaps) -> dict[str, np.ndarray]:
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
            **{name: f"{each[query, key]:.6f}" for name, each in values.items()},
        }
        for query, key in np.ndindex(len(maps.queries), len(maps.keys))
    ]
    write_whole(path, as_csv(rows))


def draw_learning_curve(directory: Path, path: Path) -> None:
    """Draw loss and accuracy over the steps in `metrics.jsonl` of a run."""
    rows = read_metrics(directory)
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, name, label in ((left, "nll", NLL), (right, "accuracy", "token accuracy")):
        for split, marker in (("train", "."), ("validation", "o")):
            points = [(row["step"], row[name]) for row in rows if row["split"] == split]
            if points:
                axes.plot(*zip(*points, strict=True), marker=marker, label=split, markersize=4)
        axes.set(xlabel="step", ylabel=label)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
        axes.legend()
    left.set_yscale("log")
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter("{x:g}")
    save(figure, path)


def draw_runs(curves: Mapping[str, Sequence[Mapping[str, float]]], path: Path) -> None:
    """Draw the learning curves of several runs.

    Args:
        curves: the rows of `metrics.jsonl` of each run.
        path: a picture file.
    """
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name, rows in curves.items():
        points = [(row["step"], row["nll"]) for row in rows if row["split"] == "train"]
        axes.plot(*zip(*points, strict=True), marker=".", label=name)
    axes.set(xlabel="step", ylabel=NLL, yscale="log")
    axes.grid(alpha=0.3)
    if len(curves) <= MOST_NAMES:
        axes.legend(fontsize=8)
    save(figure, path)


def save(figure: Figure, path: Path, formats: Sequence[str] = FORMATS[:1]) -> None:
    """Write a figure; equal figures are equal bytes."""
    for suffix in formats:
        content = io.BytesIO()
        with matplotlib.rc_context(STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph .* missing from")  # the SVG has it as text
            figure.savefig(content, format=suffix[1:], dpi=120, metadata=METADATA[suffix])
        write_whole(path.with_suffix(suffix), content.getvalue())


def markdown(rows: Sequence[Mapping[str, Any]], digits: int) -> str:
    """Return rows as a Markdown table, with so many digits after the point of each float."""

    def written(value: object) -> str:
        return f"{value:.{digits}f}" if isinstance(value, float) else str(value)

    return markdown_table([{name: written(value) for name, value in row.items()} for row in rows])


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with the same names as CSV, with all digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _panels(
    panels: Mapping[str, np.ndarray],
    maps: AttentionMaps,
    columns: int,
    title: str,
    unit: str,
    lowest: int = 0,
) -> Figure:
    """Draw maps `[T, S]` by their titles, and a colour bar.

    The size is what the tokens need; a constrained layout would take a second for each figure.

    Args:
        panels: values from `lowest` to 1.
        maps: with the labels of the tokens.
        columns: number of panels in a row, at most.
        title: of the figure.
        unit: of the values.
        lowest: 0, or -1 for values with signs.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    cells, across = (max(CELL * len(labels), 1) for labels in (maps.queries, maps.keys))
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
        colors = SIGNED if lowest else COLORS
        image = axes.imshow(values, cmap=colors, vmin=lowest, vmax=1, aspect="auto")
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
    figure.colorbar(image, cax=bar).set_label(unit, fontsize=7)
    bar.tick_params(labelsize=7)
    return figure

"""Plot of time over length, one line for each contender, beside the curve T²."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.benchmarks.cases import PASSES
from experiments.benchmarks.results import Results


def draw_times(results: Results, path: Path) -> None:
    """Draw milliseconds per example over T: one panel for each pattern, dtype and pass.

    Args:
        results: of a run.
        path: of the image file.
    """
    from matplotlib.figure import Figure  # slow to import, needed once

    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for one in sorted(results.measured(), key=lambda one: one.case.length):
        case = one.case
        panel = panels.setdefault(f"{case.pattern}, {case.dtype}, {PASSES[case.gradient]}", {})
        point = case.length, 1e3 * one.quantile(0.5) / case.batch
        panel.setdefault(one.contender, []).append(point)
    contenders = list(dict.fromkeys(one.contender for one in results.measured()))
    columns = min(3, max(1, len(panels)))
    height = -(-max(1, len(panels)) // columns)
    figure = Figure(figsize=(5 * columns, 3.6 * height), layout="constrained")
    grid = figure.subplots(height, columns, squeeze=False).ravel()
    for axes, (title, lines) in zip(grid, panels.items(), strict=False):
        for name, points in lines.items():
            color = f"C{contenders.index(name)}"
            style = "-" if name.startswith("attend") else "--"
            axes.loglog(*zip(*points, strict=True), "o" + style, color=color, label=name, ms=4)
        axes.loglog(*zip(*quadratic(lines), strict=True), ":", color="grey", label="∝ T²")
        axes.set(title=title, xlabel="T", ylabel="milliseconds per example")
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    for axes in grid[len(panels) :]:
        axes.remove()
    figure.savefig(path, dpi=110)


def quadratic(
    lines: Mapping[str, Sequence[tuple[int, float]]],
) -> list[tuple[int, float]]:
    """Return a curve T² through the last point of our first line, at the lengths of all lines.

    Attention over all pairs of T tokens grows like it; a window grows like T.

    Args:
        lines: points (length, time) of each contender, by length.
    """
    ours = next((line for name, line in lines.items() if name.startswith("attend")), None)
    length, time = (ours or next(iter(lines.values())))[-1]
    lengths = sorted({each for line in lines.values() for each, _ in line})
    return [(each, time * (each / length) ** 2) for each in lengths]

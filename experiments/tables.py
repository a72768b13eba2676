"""Rows of figures as tables, for people and for programs."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.files import write_whole


def write_tables(rows: Sequence[Mapping[str, Any]], path: Path, *, digits: int = 1) -> str:
    """Writes `path.md`, with so many digits after the point and returned, and `path.csv`."""
    table = as_table(rows, digits=digits)
    write_whole(path.with_suffix(".md"), table)
    write_whole(path.with_suffix(".csv"), as_csv(rows))
    return table


def as_table(rows: Sequence[Mapping[str, Any]], *, digits: int = 1) -> str:
    """Rows as a table that people read, one run a line."""
    names = list(rows[0])
    cells = [names, ["---"] * len(names)]
    for row in rows:
        cells.append([_written(row[name], digits) for name in names])
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _written(value: object, digits: int) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table that programs read."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()

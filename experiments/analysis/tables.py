"""Tables of numbers, for people and for programs."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.files import write_whole
from experiments.records import table


def markdown(rows: Sequence[Mapping[str, Any]], digits: int) -> str:
    """Return rows as a Markdown table, with so many digits after the point of each float."""

    def written(value: object) -> str:
        return f"{value:.{digits}f}" if isinstance(value, float) else str(value)

    return table([{name: written(value) for name, value in row.items()} for row in rows])


def write_tables(rows: Sequence[Mapping[str, Any]], path: Path, digits: int) -> None:
    """Write `path.md` as `markdown`, and `path.csv` with all digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path.with_suffix(".md"), markdown(rows, digits))
    write_whole(path.with_suffix(".csv"), text.getvalue())

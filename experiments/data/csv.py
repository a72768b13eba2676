"""CSV files with a header: `data.source` and `data.target` name the columns of a pair.

A split is found in `data.path` by its name in `data.files`: train.csv, also as .gz.
"""

import csv
import io
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from experiments.config.build import option
from experiments.config.data import Splits
from experiments.data.corpora import (
    CorpusData,
    Line,
    corpus_source,
    find_files,
    list_files,
    open_file,
)
from experiments.errors import UsageError
from experiments.registry import dataset


def lines(config: "CsvData", split: str) -> Iterator[tuple[Line, ...]]:
    """Yield the source of every row, and the target if `config.target` names a column.

    Raises:
        ValueError: a file that is missing, or that has not the columns.
        UsageError: a file that cannot be read, such as one with a quote that nothing closes.
    """
    (path,) = find_files(config, split, [[f"{getattr(config.files, split)}.csv"]])
    last = 0  # line of the last row that was read
    try:
        with io.TextIOWrapper(open_file(path), encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)  # else a stray quote joins rows
            if (columns := reader.fieldnames) is None:
                raise ValueError(f"{path} is empty")
            last = reader.line_num
            sides = {side: getattr(config, side) for side in ("source", "target")}
            sides = {side: column for side, column in sides.items() if column}
            for side, wanted in sides.items():
                if (number := columns.count(wanted)) != 1:
                    found = f"the name of {number} columns" if number else "no column"
                    raise ValueError(
                        f"data.{side}={wanted!r} is {found} of {path}, which has "
                        f"{', '.join(columns)}"
                    )
            for row in reader:
                last = reader.line_num
                place = f"{path}, line {last}"
                if more := row.get(None):  # a comma in a text without quotes moves the columns
                    fault = f"{len(columns) + len(more)} fields, not {len(columns)}"
                    yield tuple(Line(place, "", fault) for _ in sides)
                else:
                    yield tuple(_cell(place, row, column) for column in sides.values())
    except csv.Error as error:
        raise UsageError(
            f"{path}: the row after line {last} cannot be read, check its quotes: {error}"
        ) from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _cell(place: str, row: Mapping[str, str | None], column: str) -> Line:
    """Return one cell of a row, which is None if the row is shorter than the header."""
    text = " ".join((row[column] or "").split())
    fault = "a missing field" if row[column] is None else "" if text else "an empty field"
    return Line(f"{place}, column {column!r}", text, fault)


SOURCE = corpus_source(lines, list_files, may_lack_target=True)


@dataset(source=SOURCE, contains=("text", "pairs", "classes"))
@dataclass(frozen=True, kw_only=True)
class CsvData(CorpusData):
    """CSV files with a header: two of their columns."""

    name: str = "csv"
    source: str = option("text", "column that is read")
    target: str = option("label", "column that is predicted or written")
    files: Splits = field(default_factory=Splits)

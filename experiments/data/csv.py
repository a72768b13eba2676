"""CSV files with a header: `data.source` and `data.target` name the columns of a pair.

A split is found in `data.path` by its name in `data.files`: train.csv, also as .gz.
"""

import csv
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from experiments.config.build import option
from experiments.config.parts import Splits
from experiments.data.corpora import CORPUS_OR_TEXT, CorpusData, Line, find_split, opened
from experiments.errors import UsageError
from experiments.registry import dataset

csv.field_size_limit(sys.maxsize)  # a long text is no fault of the quotes


@dataset(source=CORPUS_OR_TEXT, contains=("text", "pairs", "classes"))
@dataclass(frozen=True, kw_only=True)
class CsvData(CorpusData):
    """CSV files with a header: two of their columns."""

    name: str = "csv"
    source: str = option("text", "column that is read")
    target: str = option("label", "column that is predicted or written")
    files: Splits = field(default_factory=Splits)

    def lines(self, split: str) -> Iterator[tuple[Line, ...]]:
        """Yield the fields of every row; a ValueError or UsageError names a fault of the file."""
        (path,) = find_split(self, split, [[".csv"]])
        last = 0  # line of the last row that was read
        try:
            with opened(path) as file:
                text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
                reader = csv.reader(text, strict=True)  # else a stray quote joins rows
                header, last = next(reader, []), reader.line_num
                columns = self._columns(header, path)
                for row in filter(None, reader):
                    last, fault = reader.line_num, ""
                    if len(row) != len(header):  # a comma in a text without quotes moves columns
                        fault = f"{len(row)} fields, not {len(header)}"
                        row += [""] * len(header)
                    yield tuple(
                        Line(
                            f"{path}, line {last}, column {name!r}", " ".join(row[n].split()), fault
                        )
                        for name, n in columns.items()
                    )
        except csv.Error as error:
            raise UsageError(
                f"{path}: the row after line {last} cannot be read, check its quotes: {error}"
            ) from error

    def _columns(self, header: list[str], path: Path) -> dict[str, int]:
        columns = {}
        for side in ("source", "target"):
            if name := getattr(self, side):
                if (number := header.count(name)) != 1:
                    raise ValueError(
                        f"data.{side}={name!r} must be one column of {path}, got {number}: it has "
                        f"{', '.join(header) or 'none'}"
                    )
                columns[name] = header.index(name)
        return columns

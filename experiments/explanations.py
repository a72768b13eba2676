"""Figures of `--mode=explain`, read from the tables in the workdir of a run."""

import csv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from experiments.errors import UsageError
from experiments.files import read_json
from experiments.records import Run, Scores
from experiments.results import SHOWN
from experiments.workdir import START

ORIGIN = "origin.json"  # command and commit that made the tables, and the step of the run
TABLES = ("alignment", "agreement", "replaced_weights", "senses")


def explanations(run: Run, path: Path) -> Iterator[Run]:
    """Yield the run for each explained split or file, with the figures of its tables as scores.

    Args:
        run: of the workdir.
        path: of the workdir.

    Raises:
        UsageError: a table, or the file of its origin, that cannot be read.
    """
    for folder in sorted(path.glob("explain/*/")):
        scores: dict[str, dict[str, float]] = {}
        for table in TABLES:
            if (folder / f"{table}.csv").exists():
                scores |= _read(folder / f"{table}.csv")
        if scores:
            start = read_json(folder / ORIGIN, {**START, "step": int})
            config = run.config.copy_and_resolve_references()
            if "literature" in config:
                del config.literature
            yield run._replace(
                name=f"{run.name}/explain_{folder.name}",
                config=config,
                results=run.results | {"splits": {}, "step": start["step"]},
                starts=[start],
                scores=scores,
            )


def _read(path: Path) -> Scores:
    """Return the numbers of a table, by "table: first cell" and column."""
    scores = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                (_, name), *others = row.items()
                numbers = {}
                for column, text in others:
                    unit = ", %" if column in SHOWN else ""  # scores of results are shares
                    with suppress(ValueError):  # an empty cell
                        numbers[f"{column}{unit}"] = float(text)
                scores[f"{path.stem}: {name.replace(';', ',')}"] = numbers
    except (OSError, TypeError, ValueError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    return scores

"""Runs that were measured, and tables of their scores: mean and standard deviation over seeds."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from experiments.errors import UsageError
from experiments.files import read_json
from experiments.metrics import read_metrics
from experiments.results import NOT_SHOWN, SHOWN
from experiments.workdir import Workdir


class Run(NamedTuple):
    """A run that was measured.

    Attributes:
        folder: its workdir.
        name: of the run, such as "positions=alibi,seed=1".
        seed: of the run.
        results: content of results.json.
        scores: numbers by split and name, with those of the last validation of the training.
    """

    folder: Path
    name: str
    seed: int
    results: dict[str, Any]
    scores: dict[str, dict[str, float]]

    @classmethod
    def read(cls, folder: Path, name: str) -> "Run":
        """Read a workdir.

        Raises:
            UsageError: files that are missing or damaged.
        """
        workdir = Workdir(folder)
        seed = read_json(workdir.config, {"seed": int})["seed"]
        results = workdir.load_results()
        validations = [
            row
            for row in read_metrics(folder)
            if row["split"] == "validation" and row["step"] <= results["step"]
        ]
        splits = ({"validation": validations[-1]} if validations else {}) | results["splits"]
        return cls(folder, name, seed, results, {name: _numbers(splits[name]) for name in splits})


def read_runs(folder: Path) -> dict[str, list[Run]]:
    """Read the runs below a folder that were measured, those that differ in their seed together.

    Raises:
        UsageError: there is none, or one is damaged.
    """
    groups: dict[str, list[Run]] = {}
    for path in sorted(path.parent for path in folder.rglob("results.json")):
        run = Run.read(path, path.relative_to(folder).as_posix())
        groups.setdefault(group_name(run.name) or folder.name, []).append(run)
    if not groups:
        raise UsageError(f"{folder} contains no run that was measured: train one")
    return groups


def group_name(run: str) -> str:
    """Return the name of a run without its seed.

    >>> group_name("model.positions=alibi,seed=1")
    'model.positions=alibi'
    """
    return re.sub(r"(^|[,/])seed=\d+$", "", run)


def score_values(runs: Sequence[Run], split: str, score: str) -> list[float]:
    """Return a score of each run that has it."""
    return [run.scores[split][score] for run in runs if score in run.scores.get(split, {})]


def format_score(score: str, values: Sequence[float]) -> str:
    """Return mean ± standard deviation (n - 1); "" without values.

    >>> format_score("exact_match", [0.98, 1.0])
    '99.00% ± 1.41%'
    """
    form = SHOWN.get(score, ("", "{:.3f}"))[1]
    numbers = [mean(values)] if values else []
    numbers += [stdev(values)] if len(values) > 1 else []
    return " ± ".join(form.format(number).strip() for number in numbers)


def score_label(score: str) -> str:
    """Return the name of a score for people."""
    return SHOWN.get(score, (score.replace("_", " "),))[0]


def score_rows(groups: Mapping[str, Sequence[Run]]) -> list[dict[str, str]]:
    """Return a row of a table for each group of runs and split."""
    names = [
        name
        for runs in groups.values()
        for run in runs
        for part in run.scores.values()
        for name in part
    ]
    columns = [name for name in dict.fromkeys(("loss", *SHOWN, *names)) if name in names]
    columns = [name for name in columns if name == "loss" or name not in NOT_SHOWN]
    return [
        {
            "run": name,
            "seeds": ", ".join(str(run.seed) for run in runs),
            "minutes": f"{min(run.results['training_seconds'] for run in runs) / 60:.1f}",
            "split": split,
            **{
                score_label(score): format_score(score, score_values(runs, split, score))
                for score in columns
            },
        }
        for name, runs in groups.items()
        for split in runs[0].scores
    ]


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows with the same names as a Markdown table."""
    lines = [[*rows[0]], ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _numbers(scores: Mapping[str, Any]) -> dict[str, float]:
    numbers = {name: value for name, value in scores.items() if isinstance(value, int | float)}
    numbers.pop("step", None)
    return numbers

"""Runs that were measured, and their scores: lines, and tables of mean and standard deviation."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from experiments.errors import UsageError
from experiments.files import read_json
from experiments.metrics import read_metrics
from experiments.workdir import Workdir

# Labels and formats of scores; those of plugins are printed by their names.
SHOWN = {
    "exact_match": ("exact match", "{:7.2%}"),
    "accuracy": ("accuracy", "{:7.2%}"),
    "bleu": ("BLEU", "{:6.2f}"),
    "tok_bleu": ("tokenized BLEU", "{:6.2f}"),
    "chrf": ("chrF", "{:6.2f}"),
    "perplexity": ("perplexity", "{:.3f}"),
    "word_perplexity": ("per word", "{:.3f}"),
}
NOT_SHOWN = ("loss", "nll", "tokens", "sentences")  # numbers that are in results.json alone


class Run(NamedTuple):
    """A run that was measured."""

    folder: Path
    name: str  # such as "positions=alibi,seed=1"
    seed: int
    results: dict[str, Any]  # content of results.json
    scores: dict[str, dict[str, float]]  # by split and name, with those of the last validation

    @classmethod
    def read(cls, folder: Path, name: str) -> "Run":
        """Read a workdir; raise a UsageError for files that are missing or damaged."""
        workdir = Workdir(folder)
        seed = read_json(workdir.config, {"seed": int})["seed"]
        results = workdir.load_results()
        splits = {}
        for row in read_metrics(folder):
            if row["split"] == "validation" and row["step"] <= results["step"]:
                splits["validation"] = {name: row[name] for name in row if name != "step"}
        scores = {
            split: {
                score: value for score, value in values.items() if isinstance(value, int | float)
            }
            for split, values in (splits | results["splits"]).items()
        }
        return cls(folder, name, seed, results, scores)


def read_runs(folder: Path, names: Iterable[str] | None = None) -> dict[str, list[Run]]:
    """Read the named runs below a folder, or all, those that differ in their seed together.

    Raises:
        UsageError: there is none, or one is damaged.
    """
    if names is None:
        paths = sorted(path.parent for path in folder.rglob("results.json"))
        names = [path.relative_to(folder).as_posix() for path in paths]
    groups: dict[str, list[Run]] = {}
    for name in names:
        without_seed = re.sub(r"(^|[,/])seed=\d+$", "", name)
        groups.setdefault(without_seed or folder.name, []).append(Run.read(folder / name, name))
    if not groups:
        raise UsageError(f"{folder} contains no run that was measured: train one")
    return groups


def line_of(split: str, scores: Mapping[str, Any]) -> str:
    """Return the scores of a split in a line: those of `SHOWN` come first."""
    texts = []
    for name in dict.fromkeys([*SHOWN, *scores]):
        if isinstance(scores.get(name), int | float) and name not in NOT_SHOWN:
            label, form = SHOWN.get(name, (name, "{:.3f}"))
            texts.append(f"{label} {form.format(scores[name])}")
    return f"{split:13s} {'   '.join(texts)}"


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


def score_rows(
    groups: Mapping[str, Sequence[Run]], *, in_one_cell: bool = False
) -> list[dict[str, str]]:
    """Return a row of a table for each group of runs and split; scores are columns, or one text."""
    splits = [scores for runs in groups.values() for run in runs for scores in run.scores.values()]
    every = {name for scores in splits for name in scores}
    columns = [name for name in ("loss", *SHOWN) if name in every]
    columns += sorted(every - {*columns, *NOT_SHOWN})
    rows = []
    for name, runs in groups.items():
        for split in runs[0].scores:
            scores = [run.scores.get(split, {}) for run in runs]
            cells = {}
            for score in columns:
                values = [each[score] for each in scores if score in each]
                cells[score_label(score)] = format_score(score, values)
            if in_one_cell:
                texts = (f"{label} {text}" for label, text in cells.items() if text)
                cells = {"scores": ", ".join(texts)}
            about = {
                "run": name,
                "seeds": ", ".join(str(run.seed) for run in runs),
                "minutes": f"{min(run.results['training_seconds'] for run in runs) / 60:.1f}",
                "split": split,
            }
            rows.append(about | cells)
    return rows


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows with the same names as a Markdown table."""
    lines = [[*rows[0]], ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)

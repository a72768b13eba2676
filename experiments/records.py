"""Scores of runs that differ in their seed alone: mean and standard deviation, kept as JSON."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple, Self

from ml_collections import ConfigDict

from experiments.config.build import flat, is_within
from experiments.data.fingerprint import fingerprint
from experiments.errors import UsageError
from experiments.files import write_whole
from experiments.json_files import read_json
from experiments.metrics import read_metrics
from experiments.results import SHOWN, deciding, differing
from experiments.workdir import CHANGEABLE, IGNORED_WHEN_COMPARING_CONFIGS, Workdir

Scores = Mapping[str, Mapping[str, float]]  # of each split, by name


class Run(NamedTuple):
    """A run that was measured.

    Attributes:
        name: path of its workdir.
        config: of the run.
        results: as `results.report` wrote them.
        texts: a fingerprint of each split.
        starts: command, commit, machine and date of each start of the training.
        scores: numbers of each split of the results, and of the last validation of the training.
    """

    name: str
    config: ConfigDict
    results: dict[str, Any]
    texts: dict[str, str]
    starts: list[dict[str, str]]
    scores: Scores

    @classmethod
    def read(cls, path: Path, name: str) -> Self:
        """Read a workdir.

        Raises:
            UsageError: files that are missing or damaged, or results of an old version.
        """
        workdir = Workdir(path)
        config, results = workdir.load_config(), workdir.load_results()
        if results.get("ended") is None:
            raise UsageError(f"{path} has results without the field 'ended': {MEASURE_AGAIN}")
        splits = results["splits"]
        for row in read_metrics(path):
            if row["split"] == "validation" and row["step"] <= results["step"]:
                splits = {"validation": row} | results["splits"]
        scores = {split: _numbers(found) for split, found in splits.items()}
        return cls(name, config, results, workdir.load_texts(), workdir.load_starts(), scores)

    @property
    def is_whole(self) -> bool:
        """Whether it was trained as long as it should be."""
        return self.results["ended"]

    @property
    def label(self) -> str:
        """The name without the seed, "" if nothing is left."""
        return re.sub(r"(^|[,/])seed=\d+$", "", self.name)

    @property
    def published(self) -> dict[str, dict[str, str]]:
        """Published figures of each split that is shown; "" for those of another text.

        Raises:
            UsageError: the split was not measured.
        """
        literature = self.config.get("literature", {split: {} for split in self.results["splits"]})
        published = {}
        for split, found in literature.items():
            if not self.scores.get(split):
                raise UsageError(f"{self.name} has no scores of {split}: {MEASURE_AGAIN}")
            figures = dict(found)
            is_same_text = figures.pop("text", None) in (None, self.texts.get(split))
            published[split] = {
                score: figure if is_same_text else ""
                for score, figure in figures.items()
                if score in self.scores[split]
            }
        return published


MEASURE_AGAIN = "measure it again by --mode=evaluate"
AS_OTHERS = "measure all seeds again by one command"


class Record(NamedTuple):
    """Runs that differ in their seed alone.

    Attributes:
        run: their name, without the seed.
        command: of the first one; commit, machine and date of all.
        seeds: of each run.
        steps: that each was trained.
        planned_steps: of the config, if the runs did not reach their end; else None.
        seconds: of the training of each. Other work of the machine lengthens it.
        parameters: of the model.
        decoding: " (decoding: num_beams=5)" if it is not that of the config.
        scores: "values" of each run, "mean" and "std" (n - 1; None for one value), by split and
            name.
        published: figures to show beside those of a split, by split and name.
        config: fields that decide the scores, by dotted name, without the seed.
    """

    run: str
    command: str
    commit: str
    machine: str
    date: str
    seeds: list[int]
    steps: list[int]
    planned_steps: int | None
    seconds: list[float]
    parameters: int
    decoding: str
    scores: dict[str, dict[str, dict[str, Any]]]
    published: dict[str, dict[str, str]]
    config: dict[str, Any]

    @classmethod
    def of(cls, name: str, runs: Sequence[Run]) -> Self:
        """Summarize runs; those that lack a score of the first one are left out with a message.

        Raises:
            UsageError: as `Run.published`.
        """
        first, *_ = runs = _comparable(runs)
        scores: dict[str, dict[str, dict[str, Any]]] = {}
        for split, found in first.scores.items():
            scores[split] = {
                score: summary([run.scores[split][score] for run in runs]) for score in found
            }
        decodings = (deciding(part.get("decoding", {})) for part in (first.results, first.config))
        return cls(
            run=name,
            command=_distinct(runs[:1], "command"),
            commit=_distinct(runs, "commit"),
            machine=_distinct(runs, "machine"),
            date=_distinct(runs, "date"),
            seeds=[run.config.seed for run in runs],
            steps=[run.results["step"] for run in runs],
            planned_steps=None if first.is_whole else first.config.train.steps,
            seconds=[run.results["training_seconds"] for run in runs],
            parameters=first.results["parameters"],
            decoding=differing(*decodings),
            scores=scores,
            published=first.published,
            config=deciding_fields(first.config),
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file of a record.

        Raises:
            UsageError: it is damaged, or was changed by hand.
        """
        found = read_json(path, FIELDS)
        record = cls(**{name: found.get(name) for name in cls._fields})
        if found["digest"] != record.digest:
            raise UsageError(
                f"{path} was changed after it was written, its digest is not that of its contents: "
                "restore the file, or measure the run again"
            )
        return record

    def save(self, path: Path) -> None:
        """Write the file of a record."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fields = self._asdict() | {"digest": self.digest}
        write_whole(path, json.dumps(fields, indent=2) + "\n")

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that follow from all fields."""
        return fingerprint([json.dumps(self._asdict(), sort_keys=True)])

    @property
    def title(self) -> str:
        """The name, and the decoding if it is not that of the config."""
        return self.run + self.decoding

    @property
    def shown(self) -> dict[tuple[str, str], str]:
        """Split and score of each figure that is shown, and the published figure or ""."""
        shown = {}
        for split, published in self.published.items():
            headline = self.headline(split)
            others = [headline] if headline in SHOWN else self.scores[split]
            for score in published or others:
                shown[split, score] = published.get(score, "")
        return shown

    def headline(self, split: str) -> str:
        """Return the name of the score of a split that is shown if no other one is asked for."""
        scores = self.scores[split]
        return next((name for name in (*SHOWN, *scores) if name in scores), "")

    def written(self, split: str, score: str) -> str:
        """Return mean and standard deviation of a score as text, "" if there is none."""
        found = self.scores.get(split, {}).get(score)
        if found is None:
            return ""
        form = SHOWN.get(score, ("", "{:.3f}"))[1]
        figures = [figure for figure in (found["mean"], found["std"]) if figure is not None]
        return " ± ".join(form.format(figure).strip() for figure in figures)


FIELDS = {
    **dict.fromkeys(("run", "command", "commit", "machine", "date", "decoding", "digest"), str),
    **dict.fromkeys(("seeds", "steps", "seconds"), list),
    **dict.fromkeys(("scores", "published", "config"), dict),
    "parameters": int,
    "planned_steps": int | None,
}


def deciding_fields(config: ConfigDict) -> dict[str, Any]:
    """Return the fields of a config that decide the scores of a run, by dotted name."""
    changeable = {*CHANGEABLE} - {"train.steps"}
    ignored = ("seed", *IGNORED_WHEN_COMPARING_CONFIGS, *changeable)
    fields = flat(config.to_dict())
    return {name: value for name, value in fields.items() if not is_within(name, ignored)}


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, standard deviation (n - 1) and the values."""
    deviation = stdev(values) if len(values) > 1 else None
    return {"mean": mean(values), "std": deviation, "values": list(values)}


def label_of(score: str) -> str:
    """Return the name of a score for people."""
    return SHOWN.get(score, (score.replace("_", " "),))[0]


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows with the same names as a Markdown table."""
    lines = [[*rows[0]], ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _comparable(runs: Iterable[Run]) -> list[Run]:
    """Return one run of each seed, all with the scores and the decoding of the first one."""
    kept: dict[int, Run] = {}
    for run in runs:
        first = next(iter(kept.values()), run)
        lacking = [
            f"{score} of {split}"
            for split, scores in first.scores.items()
            for score in scores.keys() - run.scores.get(split, {}).keys()
        ]
        if lacking:
            warn_skipped(run.name, f"it has no {min(lacking)}, as {first.name} has: {AS_OTHERS}")
        elif other := differing(_decoding(run), _decoding(first)):
            warn_skipped(run.name, f"it was measured otherwise{other}: {AS_OTHERS}")
        elif (same := kept.setdefault(run.config.seed, run)) is not run:
            warn_skipped(run.name, f"{same.name} has the same seed")
    return [*kept.values()]


def _decoding(run: Run) -> dict[str, Any]:
    return deciding(run.results.get("decoding", {}))


def warn_skipped(name: str, reason: object) -> None:
    """Print on standard error why a run is left out."""
    print(f"{name} is left out: {reason}", file=sys.stderr)


def _numbers(scores: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in scores.items()
        if isinstance(value, int | float) and name != "step"
    }


def _distinct(runs: Sequence[Run], field: str) -> str:
    """Return what the starts of all runs contain in a field, without repetitions."""
    found = dict.fromkeys(start.get(field) for run in runs for start in run.starts)
    return "; ".join(filter(None, found)) or "unknown"

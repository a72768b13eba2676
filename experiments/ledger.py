"""The ledger: what runs achieved beside what was published, read from their workdirs."""

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from ml_collections import ConfigDict

from experiments.errors import UsageError
from experiments.files import write_whole
from experiments.results import SHOWN, deciding, differing
from experiments.workdir import Workdir

INTRODUCTION = """\
# Results

What runs of this repository achieved, beside what was published. Made from their workdirs by one
command, the only way to change this page; runs that differ in their seed alone share a row. A run
whose workdir is not here stays on the page as it was.
"""
COLUMNS = ("run", "figure", "ours", "published", "seeds", "steps", "training", "commit", "machine")


class Run(NamedTuple):
    """What a workdir says.

    Attributes:
        name: of its folder.
        config: of the run.
        results: as `results.report` wrote them.
        texts: a fingerprint of each split.
        starts: command, commit and machine of each start of the training.
    """

    name: str
    config: ConfigDict
    results: dict[str, Any]
    texts: dict[str, str]
    starts: list[dict[str, str]]

    @classmethod
    def of(cls, path: Path, name: str) -> Self:
        """Reads a workdir."""
        workdir = Workdir(path)
        return cls(
            name,
            workdir.load_config(),
            workdir.load_results(),
            workdir.load_texts(),
            workdir.load_starts(),
        )

    @property
    def kind(self) -> str:
        """What runs that differ in their seed alone have in common."""
        fields = {name: value for name, value in self.config.to_dict().items() if name != "seed"}
        cut = None if self.is_whole else self.results["step"]
        return json.dumps([fields, deciding(self.results.get("decoding", {})), cut], sort_keys=True)

    @property
    def is_whole(self) -> bool:
        """Whether it was trained as long as it should be.

        Raises:
            UsageError: its results do not say so.
        """
        if "ended" not in self.results:
            raise UsageError(
                f"{self.name} does not say whether its training ended: measure it again by "
                "--mode=evaluate"
            )
        return self.results["ended"]

    @property
    def redecoded(self) -> str:
        """How what was measured was decoded, where that is not as the configuration says."""
        used, said = (deciding(of.get("decoding", {})) for of in (self.results, self.config))
        return differing(used, said)


def ledger(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Writes the page.

    Args:
        config: `folder`, whose runs are told, and `page`, the file.
        workdir: unused: the runs have their own.
        cache: unused.

    Raises:
        UsageError: a folder without runs.
    """
    del workdir, cache
    runs = runs_below(Path(config.folder))
    if not runs:
        raise UsageError(f"folder={config.folder} holds no run that was measured: train one first")
    before = told_before(Path(config.page))
    text = page(runs, before, shlex.join(["python", *sys.argv]))
    write_whole(Path(config.page), text)
    print(text)


def check(config: ConfigDict) -> None:
    """Refuses, before anything is read, a page without a folder.

    Raises:
        UsageError: in one sentence.
    """
    page = Path(config.page)
    if not page.parent.is_dir() or page.is_dir():
        raise UsageError(f"page={config.page} is no file in a folder that is there")


def runs_below(folder: Path) -> list[Run]:
    """All runs of a folder that were measured, those of comparisons too."""
    places = sorted(path.parent for path in folder.rglob("results.json"))
    return [Run.of(place, place.relative_to(folder).as_posix()) for place in places]


class Told(NamedTuple):
    """What a page says of a run: its rows, and the line with its command."""

    rows: list[tuple[str, ...]]
    command: str


def told_before(path: Path) -> dict[str, Told]:
    """What a page says so far, by the names of the runs; nothing if there is none yet."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    table = [tuple(line[2:-2].split(" | ")) for line in lines if line.startswith("| ")]
    told: dict[str, Told] = {}
    for line in lines:
        name, colon, _ = line.removeprefix("- ").partition(": `")
        if colon and line.startswith("- "):
            told[name] = Told([row for row in table if row[0] == name], line)
    return told


def page(runs: Sequence[Run], before: Mapping[str, Told], command: str) -> str:
    """Markdown: a row for each figure, and how to come by each run again.

    Args:
        runs: that are here.
        before: what was told of others, which is told again, and of these, which is not.
        command: by which the page is made.
    """
    here = {run.name for run in runs}
    told = {name: one for name, one in before.items() if name not in here}
    for _, group in groupby(sorted(runs, key=_order), key=lambda run: run.kind):
        alike = _of_each_seed(group)
        name = alike[0].name
        told[name] = Told([*_rows(alike)], f"- {name}: `{_each(alike[:1], 'command')}`")
    each = [told[name] for name in sorted(told)]
    table = [COLUMNS, ("---",) * len(COLUMNS), *(row for one in each for row in one.rows)]
    return "\n".join(
        [
            f"{INTRODUCTION}\n```sh\n{command}\n```\n",
            *("| " + " | ".join(row) + " |" for row in table),
            "\nThe commands of the runs:\n",
            *(one.command for one in each),
            "",
        ]
    )


def _order(run: Run) -> tuple[str, int]:
    return run.kind, run.config.seed


def _of_each_seed(group: Iterable[Run]) -> list[Run]:
    """One run of each seed: a copy of a run is not another one."""
    first: dict[int, Run] = {}
    for run in group:
        known = first.setdefault(run.config.seed, run)
        if known is not run:
            print(f"{run.name} is left out: {known.name} has the same seed", file=sys.stderr)
    return [*first.values()]


def _rows(group: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    first = group[0]
    seconds = np.mean([run.results["training_seconds"] for run in group])
    steps = ", ".join(dict.fromkeys(f"{run.results['step']:,}" for run in group))
    rest = (
        ", ".join(str(run.config.seed) for run in group),
        steps if first.is_whole else f"**{steps} of {first.config.train.steps:,}**",
        f"{seconds / 60:.1f} min",
        _each(group, "commit"),
        _each(group, "machine"),
    )
    for split, score, published in _figures(first):
        label, form = SHOWN.get(score, (score, "{:.3f}"))
        values = [_value(run, split, score) for run in group]
        ours = form.format(np.mean(values)).strip()
        if len(group) > 1:
            ours += f" ± {form.format(np.std(values)).strip()}"
        yield (first.name, f"{split} {label}{first.redecoded}", ours, published, *rest)


def _figures(run: Run) -> Iterator[tuple[str, str, str]]:
    """Split, score and published figure: those that were published, else the first of each split.

    Other text has other scores: where a run has none of those that were published of a split, or
    the text that they are of is told and is another, its own stands beside nothing.
    """
    splits: Mapping[str, Mapping[str, float]] = run.results["splits"]
    literature = run.config.get("literature", {split: {} for split in splits})
    for split, published in literature.items():
        own, figures = splits.get(split, {}), {**published}
        is_of_it = figures.pop("text", None) in (None, run.texts.get(split))
        if not own or figures.keys() & own.keys():
            yield from (
                (split, score, figure if is_of_it else "") for score, figure in figures.items()
            )
        else:
            yield split, next((name for name in SHOWN if name in own), next(iter(own))), ""


def _value(run: Run, split: str, score: str) -> float:
    """A score of a run.

    Raises:
        UsageError: it did not measure it.
    """
    try:
        return run.results["splits"][split][score]
    except KeyError:
        raise UsageError(
            f"{run.name} has no {score} of {split} in its results: measure it again by "
            "--mode=evaluate"
        ) from None


def _each(group: Sequence[Run], field: str) -> str:
    """What the starts of all runs say, each once."""
    told = dict.fromkeys(start[field] for run in group for start in run.starts)
    return "; ".join(told) or "unknown"

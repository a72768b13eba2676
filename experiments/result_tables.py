"""Tables of results in documents, made from the records of runs.

A document contains a block for each table; `Results.updated` writes its lines anew:

    <!-- results: test/exact_match; longer/exact_match
    toy_translation
    toy_translation_gqa
    -->
    | configuration | test exact match | ...
    <!-- end of results -->

The figures of the first line, each SPLIT/SCORE, are columns, with a row for each run; in a figure
`*/SCORE` the splits are those after the name of a run, as in `copy: test; validation`, each with a
row. Without columns each figure has a row: those after the name of a run, as in
`copy: test/exact_match`, or all that the run shows. `<!-- all results -->` lists every run and its
command, and `<!-- output of RUN -->` contains the scores that its first seed printed. The docstring
of a configuration, its card, ends with time and scores of its runs.
"""

import ast
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from experiments.config.files import DEFAULT, config_files, load_config
from experiments.errors import UsageError, nearest
from experiments.records import Record, label_of, table
from experiments.registry import TASKS
from experiments.results import line_of

HEAD = r"<!-- (results:|all results|output of) ?([^>]*?)-->\n"
END = "<!-- end of results -->"
BLOCK = re.compile(f"({HEAD}).*?{END}", re.DOTALL)
CARD = re.compile(r'^time  .*?(?=""")', re.DOTALL | re.MULTILINE)
NOT_RUN = "not run"
IN_RESULTS_ALONE = ("steps", "date", "machine")  # columns that other documents leave out

Figure = tuple[str, str]  # split and score


class Results(NamedTuple):
    """All results.

    Attributes:
        records: by run.
        configs: file of each configuration that trains a model, by name.
    """

    records: Mapping[str, Record]
    configs: Mapping[str, Path]

    @classmethod
    def load(cls, results: Path, configs: Path) -> Self:
        """Read two folders.

        Raises:
            UsageError: a record that is damaged, was changed, or is in the file of another run.
        """
        records = {}
        for path in results.rglob("*.json"):
            record = Record.load(path)
            if path != results / f"{record.run}.json":
                raise UsageError(f"{path} is the record of {record.run}: rename or remove it")
            records[record.run] = record
        return cls(
            dict(sorted(records.items())),
            {path.stem: path for path in config_files(configs) if _trains(path)},
        )

    def updated(self, path: Path) -> str:
        """Return the text of a document with new blocks, or of a configuration with a new card.

        Raises:
            UsageError: a block without an end, an unknown run, or a figure that a run lacks.
        """
        text = path.read_text(encoding="utf-8")
        if path.stem in self.configs and path.suffix == ".py":
            return CARD.sub(lambda _: self._card(path.stem), text, count=1)
        if len(re.findall(HEAD, text)) != text.count(END):
            raise UsageError(f"{path} must have one line {END!r} after each block of results")
        try:
            return BLOCK.sub(lambda found: self._block(*found.groups(), path), text)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error

    def _block(self, head: str, kind: str, what: str, path: Path) -> str:
        """Return the lines of a block."""
        if kind == "output of":
            body = _output(self._record(what.strip()))
        elif kind == "all results":
            rows = [
                row | {"run": f"`{run}`"}
                for run in self._runs()
                for row in self._rows(run, [], path)
            ]
            body = f"{table(rows)}\nThe commands of the runs:\n\n{self._commands()}"
        else:
            body = table(self._table(what, path))
        return f"{head}\n{body}\n{END}"

    def _table(self, what: str, path: Path) -> list[dict[str, str]]:
        """Return the rows of a table, without columns that are empty in all of them."""
        first, *lines = what.rstrip().split("\n")
        columns = _figures(first)
        rows = [row for line in lines for row in self._rows_of_line(line, columns, path)]
        if not rows:
            raise UsageError("a block of results names no run")
        for row, before in zip(rows[:0:-1], rows[-2::-1], strict=True):
            link, _, about = row["run"].partition("): ")
            if row["run"] == before["run"]:
                row["run"] = ""
            elif about and before["run"].endswith(about):  # of the same configuration
                row["run"] = f"{link})"
        left_out = {name for name in rows[0] if not any(row[name] for row in rows)}
        left_out |= {*IN_RESULTS_ALONE}
        return [{key: row[key] for key in row if key not in left_out} for row in rows]

    def _rows_of_line(
        self, line: str, columns: Sequence[Figure], path: Path
    ) -> list[dict[str, str]]:
        """Return the rows of a line: one for each figure, or, with columns, for each split."""
        run, _, what = line.partition(":")
        if not columns:
            return [*self._rows(run, _figures(what), path)]
        record, rows = self._record(run), []
        for split in map(str.strip, what.split(";")):
            cells = {}
            for own, score in columns:
                if own != "*":
                    cells[f"{own} {label_of(score)}"] = _result(record, own, score)
                elif record is None or score in record.scores.get(split, {score}):
                    cells[label_of(score)] = _result(record, split, score)
                else:  # a score that this split lacks and others have
                    cells[label_of(score)] = ""
            rows.append({"run": self._link(run, path), "figure": split} | cells | _origin(record))
        return rows

    def _rows(self, run: str, figures: Sequence[Figure], path: Path) -> Iterator[dict[str, str]]:
        """Yield a row for each figure of a run, all that it shows if none is given."""
        record = self._record(run)
        published = {} if record is None else record.shown
        for split, score in figures or published or [("", "")]:
            yield {
                "run": self._link(run, path),
                "figure": f"{split} {label_of(score)}{record.decoding if record else ''}".strip(),
                "result": _result(record, split, score),
                "for comparison": published.get((split, score), ""),
                **_origin(record),
            }

    def _record(self, run: str) -> Record | None:
        """Return a record, or None for a configuration that was not run.

        Raises:
            UsageError: neither a record nor a configuration.
        """
        known = [*self.records, *self.configs]
        if run not in known:
            raise UsageError(f"there is no run and no configuration {run!r}{nearest(run, known)}")
        return self.records.get(run)

    def _link(self, run: str, path: Path) -> str:
        """Return the name of a run as a link to its configuration, and what that is about."""
        name = run if run in self.configs else self._configuration(self.records[run])
        if name not in self.configs:
            return f"`{run}`"
        target = os.path.relpath(self.configs[name], path.parent)
        return f"[`{run}`]({target}): {_docstring(self.configs[name]).splitlines()[0]}"

    def _runs(self) -> list[str]:
        """Return the names of all records, and of the configurations without one."""
        run = {part for name in self.records for part in (name, name.split("/")[0])}
        return sorted([*self.records, *(name for name in self.configs if name not in run)])

    def _commands(self) -> str:
        commands = {run: f"python run.py --config={run}" for run in self._runs()}
        commands |= {run: record.command for run, record in self.records.items()}
        return "".join(f"- {run}: `{command}`\n" for run, command in commands.items())

    def _card(self, name: str) -> str:
        """Return the end of the docstring of a configuration."""
        records = {
            run: record
            for run, record in self.records.items()
            if self._configuration(record) == name and record.shown
        }
        time = NOT_RUN
        if records:
            run = name if name in records else next(iter(records))
            time = f"{_minutes(records[run])} of training" + f" ({run})" * (run != name)
        scores = [_entry(record, "" if run == name else run) for run, record in records.items()]
        entries = [("time", time), *(("score", score) for score in scores or [NOT_RUN])]
        lines = [
            textwrap.fill(
                f"{mark:10} {text}",
                100,
                subsequent_indent=" " * 11,
                break_long_words=False,
                break_on_hyphens=False,
            )
            for mark, text in entries
        ]
        return "\n".join(lines) + "\n"

    def _configuration(self, record: Record) -> str:
        """Return the name of the configuration of a record; "copy_tiny" for "copy:tiny".

        A command can name several or none; then it is the last one in the name of the run.
        """
        found = re.findall(r"--config[= ](?:\S*/)?(\w+)(?:\.py)?:?(\w*)", record.command)
        names = ["_".join(filter(None, parts)) for parts in found]
        parts = reversed(re.split(r"[/,+]", record.run))
        return next(
            (part for part in parts if part in (names or self.configs)), [*names, DEFAULT][0]
        )


def _trains(path: Path) -> bool:
    """Return whether a configuration without a form trains a model."""
    return path.stem != "presets" and load_config(str(path)).task in TASKS


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or path.stem


def _figures(text: str) -> list[Figure]:
    """Return the figures of `split/score; split/score`."""
    parts = (part.strip().partition("/") for part in text.split(";") if part.strip())
    return [(split, score) for split, _, score in parts]


def _result(record: Record | None, split: str, score: str) -> str:
    """Return a figure as text.

    Raises:
        UsageError: the run lacks it.
    """
    if record is None:
        return NOT_RUN
    if not split:
        return f"in results/{record.run}.json"
    if score not in record.scores.get(split, {}):
        known = [f"{split}/{name}" for split, each in record.scores.items() for name in each]
        hint = nearest(f"{split}/{score}", known)
        raise UsageError(f"the run {record.run} has no figure '{split}/{score}'{hint}")
    return record.written(split, score)


def _origin(record: Record | None) -> dict[str, str]:
    """Return the last cells of the rows of a run, empty if it was not run."""
    names = ("training", "seeds", "commit", *IN_RESULTS_ALONE)
    if record is None:
        return dict.fromkeys(names, "")
    seeds = ", ".join(map(str, record.seeds))
    origin = (_minutes(record), seeds, record.commit, _steps(record), record.date, record.machine)
    return dict(zip(names, origin, strict=True))


def _minutes(record: Record) -> str:
    """Return the time of the fastest seed."""
    return f"{min(record.seconds) / 60:.1f} min"


def _steps(record: Record) -> str:
    steps = ", ".join(dict.fromkeys(f"{step:,}" for step in record.steps))
    return steps if record.planned_steps is None else f"**{steps} of {record.planned_steps:,}**"


def _entry(record: Record, name: str) -> str:
    """Return the scores of a record as an entry of a card."""
    figures = [
        f"{split} {label_of(score)}: {record.written(split, score)}"
        + (f" (for comparison: {figure})" if figure else "")
        for (split, score), figure in record.shown.items()
    ]
    seeds = ", ".join(map(str, record.seeds))
    origin = f"{'seeds' if len(record.seeds) > 1 else 'seed'} {seeds}, commit {record.commit}"
    return f"{name and f'{name}: '}{'; '.join(figures)}; {origin}"


def _output(record: Record | None) -> str:
    """Return what the first seed of a record printed at its end."""
    if record is None:
        return f"{NOT_RUN}\n"
    splits = {
        split: {score: each["values"][0] for score, each in scores.items()}
        for split, scores in record.scores.items()
        if split != "validation"
    }
    first = f"{record.steps[0]:,} steps, {record.seconds[0]} s of training"
    return "\n".join(["```", first, *map(line_of, splits, splits.values()), "```", ""])

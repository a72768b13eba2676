"""Make every table of results in the documents and the cards of configs.

    python tools/results.py             from the records in results/
    python tools/results.py workdirs    and first make a record of each run in this folder

A record is the JSON file of runs that differ in their seed alone: where they are from, and their
scores by split and name, a value for each seed. A document contains a block for each table:

    <!-- results: test/exact_match; longer/exact_match
    toy_translation
    toy_translation_gqa
    -->
    | run | test exact match | ...
    <!-- end of results -->

The figures of the first line, each SPLIT/SCORE, are columns; in `*/SCORE` the split is that after
the name of a run, as in `copy: test; validation`, each with a row. Without columns each figure has
a row: those after the name of a run, as in `copy: test/exact_match`, or all that the run shows.
`<!-- all results -->` lists all records, and `<!-- output of RUN -->` contains the scores that its
first seed printed. The docstring of a config, its card, ends with time and scores of its runs.
"""

import ast
import csv
import io
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiments.config import DEFAULT, config_files, load_config
from experiments.config.build import flat
from experiments.errors import UsageError, nearest
from experiments.files import read_json, read_json_lines
from experiments.records import (
    NOT_SHOWN,
    SHOWN,
    Run,
    format_score,
    line_of,
    markdown_table,
    read_runs,
    score_label,
)
from experiments.registry import TASKS
from experiments.workdir import CHANGEABLE, Workdir

DOCUMENTS = ("README.md", "docs/**/*.md", "experiments/RESULTS.md")
BLOCK = re.compile(
    r"(?P<head><!-- (?P<kind>results:|all results|output of) ?(?P<what>[^>]*?)-->\n)"
    r".*?<!-- end of results -->",
    re.DOTALL,
)
CARD = re.compile(r'^time  .*?(?=""")', re.DOTALL | re.MULTILINE)
# Columns of the tables of --mode=explain that documents show.
EXPLAINED = {
    "alignment": ("validation AER", "AER"),
    "agreement": (
        "rank correlation with occlusion by an empty vector",
        "rank correlation with integrated gradients",
        "drop by deletion, nats",
    ),
    "replaced_weights": ("loss", "rise with uniform weights", "rise with permuted weights"),
}
IN_RESULTS_ALONE = ("steps", "date", "machine")  # columns that other documents leave out

Record = Mapping[str, Any]
Scores = dict[str, dict[str, list[float]]]  # values of each seed by split and name


# Records of runs --------------------------------------------------------------------------------


def make_records(folder: Path, results: Path) -> None:
    """Write a record of the runs below a folder that differ in their seed alone.

    Raises:
        UsageError: the record of that name is of another config, or of more seeds.
    """
    for name, runs in read_runs(folder).items():
        record = record_of(runs)
        write_record(results / f"{name}.json", record)
        for tables in sorted(runs[0].folder.glob("explain/*/")):
            explained = [run for run in runs if (run.folder / "explain" / tables.name).exists()]
            if scores := explained_scores(explained, tables.name):
                start = read_json(tables / "origin.json", {"command": str, "commit": str})
                own = record_of(explained) | {**start, "published": {}, "scores": scores}
                write_record(results / name / f"explain_{tables.name}.json", own)


def record_of(runs: Sequence[Run]) -> Record:
    """Summarize runs that differ in their seed alone."""
    config = read_json(Workdir(runs[0].folder).config, {"task": str})
    starts = [start for run in runs for start in read_json_lines(Workdir(run.folder).starts, {})]

    def origin(field: str) -> str:
        return "; ".join(dict.fromkeys(start[field] for start in starts if start.get(field)))

    name = config_name(starts[0]["command"], runs[0].name)
    there, here = flat(json.loads(load_config(name).to_json())), flat(config)
    irrelevant = ("seed", "literature", "plugin", "data.path", *CHANGEABLE)
    changed = {field: here[field] for field in here if there.get(field) != here[field]}
    changed = {field: changed[field] for field in changed if not field.startswith(irrelevant)}
    shown = [split for split in runs[0].scores if split != "validation"]
    published = config.get("literature") or {split: {} for split in shown}
    if any(field.startswith("data.") for field in changed):
        published = {split: {} for split in published}  # of other data there is no figure
    return {
        "config": name,
        "changed": changed,
        "command": starts[0]["command"],
        "commit": origin("commit"),
        "machine": origin("machine"),
        "date": origin("date"),
        "seeds": [run.seed for run in runs],
        "steps": runs[0].results["step"],
        "seconds": [run.results["training_seconds"] for run in runs],
        "parameters": runs[0].results["parameters"],
        "published": published,
        "scores": {
            split: {
                score: [_rounded(run.scores[split][score]) for run in runs]
                for score in scores
                if score == "loss" or score not in NOT_SHOWN
            }
            for split, scores in runs[0].scores.items()
        },
    }


def explained_scores(runs: Sequence[Run], name: str) -> Scores:
    """Return the figures in the tables of a name that --mode=explain wrote for each run."""
    scores: Scores = {}
    folders = [run.folder / "explain" / name for run in runs]
    tables = [(table, folder / f"{table}.csv") for table in EXPLAINED for folder in folders]
    for table, path in tables:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for row in csv.DictReader(io.StringIO(text)):
            name = next(iter(row.values())).replace(";", ",")
            values = scores.setdefault(f"{table}: {name}", {})
            for column in EXPLAINED[table]:
                with suppress(KeyError, ValueError):  # an empty cell, or no such column
                    values.setdefault(column, []).append(_rounded(float(row[column])))
    return scores


def config_name(command: str, run: str) -> str:
    """Return the name of the config of a command; if it names several, the last one in the run."""
    named = re.findall(r"--config[= ](?:\S*/)?(\w+)", command) or [DEFAULT]
    return next((part for part in reversed(re.split(r"[/,+]", run)) if part in named), named[0])


def write_record(path: Path, record: Record) -> None:
    """Write a record, a line for each field and each split.

    Raises:
        UsageError: the file is of another config, or of more seeds.
    """
    if path.exists():
        kept = read_json(path, {"changed": dict, "seeds": list})
        if kept["changed"] != record["changed"] or len(kept["seeds"]) > len(record["seeds"]):
            raise UsageError(f"{path} is of another config or of more seeds: rename the workdir")
    path.parent.mkdir(parents=True, exist_ok=True)
    *fields, _ = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in record.items())
    scores = record["scores"].items()
    splits = (f"  {json.dumps(split)}: {json.dumps(values)}" for split, values in scores)
    fields.append('"scores": {\n  ' + ",\n  ".join(splits) + "\n  }")
    path.write_text("{\n  " + ",\n  ".join(fields) + "\n}\n", encoding="utf-8")


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


# Tables -----------------------------------------------------------------------------------------


class Tables:
    """Tables of all records, for documents and cards."""

    def __init__(self, results: Path, configs: Path) -> None:
        """Read the records of a folder, and the names of configs that train a model."""
        paths = sorted(results.rglob("*.json"))
        names = [path.relative_to(results).with_suffix("").as_posix() for path in paths]
        fields = {"scores": dict, "seeds": list, "published": dict}
        self.records = {
            name: read_json(path, fields) for name, path in zip(names, paths, strict=True)
        }
        self.configs = {path.stem: path for path in config_files(configs) if _trains(path)}

    def updated(self, path: Path) -> str:
        """Return the text of a document with new blocks, or of a config with a new card.

        Raises:
            UsageError: an unknown run, or a figure that a run lacks.
        """
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            if path.stem not in self.configs:
                return text
            return CARD.sub(lambda _: self.card(path.stem), text, count=1)
        return BLOCK.sub(lambda match: self.block(match, path), text)

    def block(self, match: re.Match[str], path: Path) -> str:
        """Return the lines of a block of a document."""
        if match["kind"] == "output of":
            body = self.output(match["what"].strip())
        elif match["kind"] == "all results":
            rows = [
                row | {"run": f"`{run}`"}
                for run in self.records
                for row in self.rows(run, [], path)
            ]
            commands = (f"- {run}: `{record['command']}`\n" for run, record in self.records.items())
            body = f"{markdown_table(rows)}\nThe commands of the runs:\n\n{''.join(commands)}"
        else:
            body = markdown_table(self.table(match["what"], path))
        return f"{match['head']}\n{body}\n<!-- end of results -->"

    def table(self, what: str, path: Path) -> list[dict[str, str]]:
        """Return the rows of a block of results, without columns that are empty in all of them."""
        first, *lines = what.rstrip().split("\n")
        rows = [row for line in lines for row in self.line(line, _figures(first), path)]
        runs, abouts = [row["run"] for row in rows], set()
        for row, before in zip(rows, ["", *runs], strict=False):
            run, _, about = row["run"].partition("): ")
            row["run"] = (
                "" if row["run"] == before else f"{run})" if about in abouts else row["run"]
            )
            abouts.add(about)
        left_out = {name for name in rows[0] if not any(row[name] for row in rows)}
        left_out |= {*IN_RESULTS_ALONE}
        return [{name: row[name] for name in row if name not in left_out} for row in rows]

    def line(
        self, line: str, columns: Sequence[tuple[str, str]], path: Path
    ) -> Iterator[dict[str, str]]:
        """Yield the rows of a line: one for each figure, or, with columns, for each split."""
        run, _, what = line.partition(":")
        if not columns:
            yield from self.rows(run, _figures(what), path)
            return
        for split in map(str.strip, what.split(";")):
            cells = {
                f"{own.replace('*', '')} {score_label(score)}".strip(): self.figure(
                    run, own.replace("*", split), score
                )
                for own, score in columns
            }
            yield {"run": self.link(run, path), "figure": split, **cells, **self.origin(run)}

    def rows(
        self, run: str, figures: Sequence[tuple[str, str]], path: Path
    ) -> Iterator[dict[str, str]]:
        """Yield a row for each figure of a run, all that it shows if none is given."""
        shown = self.shown(run)
        for split, score in figures or shown or [("", "")]:
            yield {
                "run": self.link(run, path),
                "figure": f"{split} {score_label(score)}".strip(),
                "result": self.figure(run, split, score) if split else f"in results/{run}.json",
                "for comparison": shown.get((split, score), ""),
                **self.origin(run),
            }

    def figure(self, run: str, split: str, score: str) -> str:
        """Return a figure as text, "" for a score that other splits of the run have.

        Raises:
            UsageError: the run lacks it.
        """
        scores = self.record(run)["scores"]
        known = [f"{name}/{each}" for name, part in scores.items() for each in part]
        if split not in scores or not any(name.endswith(f"/{score}") for name in known):
            hint = nearest(f"{split}/{score}", known)
            raise UsageError(f"the run {run} has no figure '{split}/{score}'{hint}")
        return format_score(score, scores[split].get(score, []))

    def shown(self, run: str) -> dict[tuple[str, str], str]:
        """Return split and score of each figure that is shown, and the published figure or ""."""
        record, shown = self.record(run), {}
        for split, published in record["published"].items():
            scores = record["scores"].get(split, {})
            headline = next((name for name in SHOWN if name in scores), None)
            figures = {name: text for name, text in published.items() if name in scores}
            shown |= {
                (split, score): figures.get(score, "")
                for score in figures or ([headline] if headline else scores)
            }
        return shown

    def record(self, run: str) -> Record:
        """Return the record of a run.

        Raises:
            UsageError: there is none.
        """
        if run not in self.records:
            raise UsageError(f"there is no record of {run!r}{nearest(run, self.records)}")
        return self.records[run]

    def link(self, run: str, path: Path) -> str:
        """Return the name of a run as a link to its config, and the first line of its card."""
        config = self.configs[self.record(run)["config"]]
        card = ast.get_docstring(ast.parse(config.read_text(encoding="utf-8"))) or ""
        first, *_ = card.splitlines()
        return f"[`{run}`]({os.path.relpath(config, path.parent)}): {first}"

    def origin(self, run: str) -> dict[str, str]:
        """Return the last cells of the rows of a run."""
        record = self.record(run)
        return {
            "training": _minutes(record),
            "seeds": ", ".join(map(str, record["seeds"])),
            "commit": record["commit"],
            "steps": f"{record['steps']:,}",
            "date": record["date"],
            "machine": record["machine"],
        }

    def output(self, run: str) -> str:
        """Return what the first seed of a record printed at its end."""
        record = self.record(run)
        lines = [
            line_of(split, {score: values[0] for score, values in scores.items()})
            for split, scores in record["scores"].items()
            if split != "validation"
        ]
        return "\n".join(
            [
                "```",
                f"{record['steps']:,} steps, {record['seconds'][0]} s of training",
                *lines,
                "```",
                "",
            ]
        )

    def card(self, config: str) -> str:
        """Return the end of the docstring of a config: time and scores of its runs."""
        runs = [run for run in self.records if self.records[run]["config"] == config]
        runs = [run for run in runs if self.shown(run)]
        time = f"{_minutes(self.records[runs[0]])} of training" if runs else "not run"
        entries = [("time", time), *(("score", self.entry(run, config)) for run in runs)]
        entries += [] if runs else [("score", "not run")]
        return "".join(_wrapped(f"{name:10} {text}") for name, text in entries)

    def entry(self, run: str, config: str) -> str:
        """Return the scores of a run as a line of the card of its config."""
        record = self.records[run]
        figures = [
            f"{split} {score_label(score)}: {self.figure(run, split, score)}"
            + (f" (for comparison: {published})" if published else "")
            for (split, score), published in self.shown(run).items()
        ]
        seeds = f"{'seeds' if len(record['seeds']) > 1 else 'seed'} {self.origin(run)['seeds']}"
        name = "" if run == config else f"{run}: "
        return f"{name}{'; '.join(figures)}; {seeds}, commit {record['commit']}"


def _minutes(record: Record) -> str:
    """Return the time of the fastest seed."""
    return f"{min(record['seconds']) / 60:.1f} min"


def _wrapped(text: str) -> str:
    indent = {"subsequent_indent": " " * 11}
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False, **indent) + "\n"


def _trains(path: Path) -> bool:
    return path.stem != "presets" and load_config(str(path)).task in TASKS


def _figures(text: str) -> list[tuple[str, str]]:
    """Return split and score of each figure of `split/score; split/score`."""
    parts = (part.strip().partition("/") for part in text.split(";") if part.strip())
    return [(split, score) for split, _, score in parts]


def documents(repository: Path) -> list[Path]:
    """List the files with results: documents, and cards of configs."""
    patterns = (*DOCUMENTS, "configs/*.py")
    return sorted(path for pattern in patterns for path in repository.glob(pattern))


def main() -> None:
    """Make records of the runs in the folder that is given, and then all tables."""
    repository = Path(__file__).resolve().parent.parent
    if sys.argv[1:]:
        make_records(Path(sys.argv[1]), repository / "results")
    tables = Tables(repository / "results", repository / "configs")
    for path in documents(repository):
        if (text := tables.updated(path)) != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(repository))


if __name__ == "__main__":
    main()

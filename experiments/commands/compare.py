"""Train several configurations on the same data with the same budget, and compare them."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.clock import round_robin
from experiments.commands.sweep import score_rows, train_all, write_report
from experiments.config import Config
from experiments.config.differences import differences, in_lines
from experiments.data.rows import EncodedPair, pad_batch
from experiments.data.sources import Splits
from experiments.data.vocabulary import SPECIALS
from experiments.errors import UsageError
from experiments.evaluation.scores import paired_bootstrap
from experiments.records import Record, Run, table
from experiments.registry import SOURCES, TASKS
from experiments.results import BOOTSTRAP
from experiments.workdir import Workdir

LENGTHS = (8, 16, 32, 64, 128)  # of sentences, at which a training step is timed
REPEATS = 5
UNPACKED = {"packed": False, "row_length": 0}  # a row of a timed batch is one pair


def compare(runs: Mapping[str, Config], workdir: Workdir, cache: Path) -> None:
    """Train each run, and write `comparison.json`, `comparison.md` and `comparison.png`.

    Translations are compared with those of the first run by paired bootstrap, but not where one of
    the two has a decoding other than that of its config. The training step of translation is timed
    at several lengths.

    Args:
        runs: config of each run.
        workdir: contains a folder for each run.
        cache: folder of generated data.
    """
    check_comparable(runs)
    places = train_all(runs, workdir, cache)
    records = [Record.of(name, [Run.read(place.path, name)]) for name, place in places.items()]
    runs, chances, costs = {name: runs[name] for name in places}, {}, {}
    if all(run.task == "translation" for run in runs.values()):
        alike = [record for record in records if record.decoding == records[0].decoding]
        if len(alike) > 1:
            chances = dict(by_chance({each.run: runs[each.run] for each in alike}, places, cache))
        costs = seconds_by_length(runs, places, cache)
    scores = score_rows(records)
    names = {record.title: record.run for record in records}
    for row in scores if chances else []:
        chance = chances.get(row["split"], {}).get(names[row["run"]])
        row[f"p against {records[0].run}"] = "" if chance is None else f"{chance:.3f}"
    sizes = [_cost(record) | _milliseconds(costs.get(record.run, {})) for record in records]
    note = f"\np: {BOOTSTRAP}\n" if chances else ""
    text = f"{table(scores)}{note}\n{table(sizes)}"
    written = {
        "runs": [record._asdict() for record in records],
        "p": chances,
        "seconds_by_length": costs,
    }
    write_report(workdir.path / "comparison", records, places, written, text, costs)


def check_comparable(runs: Mapping[str, Config]) -> None:
    """Check that runs have the same task, data and budget.

    Raises:
        UsageError: they differ; it lists the fields.
    """
    (first, reference), *others = runs.items()
    for name, run in others:
        common = {first: _common(reference), name: _common(run)}
        if fields := differences(*common.values()):
            raise UsageError(
                f"{first} and {name} differ: a comparison is of the same data with the same budget"
                + in_lines(fields, {f"in {run}": fields for run, fields in common.items()})
            )


def _common(run: Config) -> dict[str, Any]:
    """Return the fields that are equal in all runs of a comparison."""
    fields = {part: run.to_dict().get(part, {}) for part in ("data", "text", "batch", "train")}
    for part, names in (("batch", ("tokens", "size")), ("train", ("steps", "duration"))):
        fields[part] = {name: fields[part].get(name) for name in names}
    return {"task": run.task, **fields}


def _cost(record: Record) -> dict[str, str]:
    return {
        "run": record.run,
        "parameters": f"{record.parameters:,}",
        "seconds of training": f"{record.seconds[0]:,.1f}",
    }


def _milliseconds(costs: Mapping[int, float]) -> dict[str, str]:
    return {f"ms at {length}": f"{1e3 * seconds:.1f}" for length, seconds in costs.items()}


def by_chance(
    runs: Mapping[str, Config], places: Mapping[str, Workdir], cache: Path
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each test split and the p-values of the differences from the first run in BLEU."""
    data = next(iter(runs.values())).data
    splits = Splits(data, cache)
    for split in SOURCES[data.name].tests:
        answers = {name: places[name].load_hypotheses(split) for name in runs}
        references = [pair.target for pair in splits[split]]
        tokenized = getattr(data, "tokenized", False)
        yield split, paired_bootstrap(answers, references, tokenized=tokenized)


def seconds_by_length(
    runs: Mapping[str, Config], places: Mapping[str, Workdir], cache: Path
) -> dict[str, dict[int, float]]:
    """Return the median time of a training step at each length, all runs in turn.

    Every step has the same number of tokens, whatever its length.
    """
    seconds: dict[str, dict[int, float]] = {name: {} for name in runs}
    for length in LENGTHS:
        steps = {name: _step(run, places[name], cache, length) for name, run in runs.items()}
        times = round_robin(steps, seconds=math.inf, rounds=REPEATS)
        for name, taken in times.items():
            seconds[name][length] = float(np.median(taken))
    return seconds


def _step(config: Config, workdir: Workdir, cache: Path, length: int) -> Callable[[], None]:
    """Return a function that takes one more training step; the first one compiles here."""
    tokens = max(config.batch.tokens, max(LENGTHS))
    batch = replace(config.batch, tokens=tokens, bucket_lengths=(max(LENGTHS),), **UNPACKED)
    config = replace(config, batch=batch, model=replace(config.model, max_length=max(LENGTHS)))
    learner = TASKS[config.task].load(config, workdir, cache).learner
    words = [len(SPECIALS)] * (length - 1)  # any words
    size = tokens // length
    batch = pad_batch([EncodedPair(words, words)] * size, size, length)
    state = learner.initial_state()

    def step() -> None:
        nonlocal state
        state, measured = learner.train_step(state, batch)
        measured["loss"].block_until_ready()

    step()
    return step

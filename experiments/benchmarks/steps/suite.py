"""The profile of a training step and of beam search, and its page."""

from collections.abc import Iterable
from pathlib import Path

from ml_collections import ConfigDict

from experiments.benchmarks.models.suite import check_length
from experiments.benchmarks.models.translating import check_trial, load_trial
from experiments.benchmarks.record import Record, beginning, check_page, origin, save, table
from experiments.benchmarks.steps.notes import BEAM_SEARCH, INTRODUCTION, TRAINING
from experiments.benchmarks.steps.programs import beam_search, training
from experiments.benchmarks.steps.shares import GAPS, Share
from experiments.errors import UsageError, as_usage_errors, check_at_least
from experiments.workdir import Workdir

SMALLEST = 0.01  # smaller shares are added up


def benchmark(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Profile, and write `steps.json` and `steps.md` to the workdir.

    Args:
        config: of the run.
        workdir: folder of all results.
        cache: folder of generated data.

    Raises:
        UsageError: no text, or as `load_trial`.
    """
    check(config)
    if not config.translation.data.path:
        raise UsageError("translation.data.path names no folder of parallel text")
    workdir.claim(config)
    trial = load_trial(config, cache)
    record = {
        "origin": origin(),
        "parameters": trial.task.learner.num_parameters,
        "sentences": trial.described,
        "training": [share._asdict() for share in training(trial, config.steps)],
        "beam_search": [share._asdict() for share in beam_search(trial)],
    }
    text = save(record, page, workdir.path / "steps.json", config.page)
    print(text)
    print(f"everything is in {workdir.path}")


def check(config: ConfigDict) -> None:
    """Check a config before anything is written.

    Raises:
        UsageError: the config cannot run.
    """
    check_page(config.page)
    with as_usage_errors():
        check_at_least("steps", config.steps, 1)
        check_length("translating", config.translating.length, "translation", config.translation)
    check_trial(config)


def page(record: Record) -> str:
    """Return the page of a record as Markdown.

    Args:
        record: `origin`, `parameters` of the model, `sentences`, the length of the translations in
            words, and the shares of `training` and `beam_search`.
    """
    training, search = ([Share(**each) for each in record[f]] for f in ("training", "beam_search"))
    model = f"`configs/multi30k.py`, {record['parameters']:,} parameters"
    parts = [beginning(INTRODUCTION, record["origin"])]
    parts += ["## A training step", "", f"{model}, one packed batch.", "", _table(training)]
    parts += ["", TRAINING, "", "## Beam search", ""]
    parts += [f"The same model, {record['sentences']}.", "", _table(search), "", BEAM_SEARCH]
    return "\n".join(parts)


def _table(shares: Iterable[Share]) -> str:
    large, rest = [], Share("smaller shares", 0.0, 0.0)
    for one in shares:
        if one.products + one.other >= SMALLEST:
            large.append(one)
        else:
            rest = Share(rest.part, rest.products + one.products, rest.other + one.other)
    lines = [["source file", "matrix products", "other operations"]]
    for part, products, other in [*large, rest]:
        name = f"`{part}`" if part.endswith(".py") else part
        share = f"{100 * products:.0f} %" if part != GAPS else "-"
        lines.append([name, share, f"{100 * other:.0f} %"])
    return table(lines)

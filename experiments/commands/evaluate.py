"""Measure a trained model again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.config import Config
from experiments.errors import as_usage_errors, one_of
from experiments.evaluation.rival import Rival, load_rival
from experiments.registry import TASKS
from experiments.results import report, results_so_far
from experiments.tasks.task import Task
from experiments.training.session import Trained, restore
from experiments.workdir import Workdir


def evaluate(
    config: Config,
    workdir: Workdir,
    cache: Path,
    split: str | None = None,
    against: Workdir | None = None,
) -> None:
    """Measure the newest checkpoint of a run, and write its results file again.

    Args:
        config: of the run.
        workdir: of the run.
        cache: where generated data is kept.
        split: the only one that is measured; all test splits by default.
        against: of another run; its translations are compared with these.

    Raises:
        UsageError: data without this split, or with another text in it than that of the run,
            or as `load_rival`.
    """
    task = TASKS[config.task].load(config, workdir, cache)
    names = task.tests
    if split is not None:
        with as_usage_errors():
            one_of("--split", split, task.known_splits)
        names = (split,)
    keep_texts(task, workdir, names)
    rival = None
    if against is not None:
        pairs = {name: task.examples(name) for name in names}
        tokenized = getattr(config.data, "tokenized", False)
        rival = load_rival(against, workdir, pairs, tokenized=tokenized)
    before = results_so_far(workdir)
    measure(task, workdir, restore(workdir, task), names, before, rival)


def keep_texts(task: Task, workdir: Workdir, names: Sequence[str]) -> None:
    """Note the fingerprints of splits, which must be those that the run has read before."""
    workdir.keep_texts({name: task.splits[name].fingerprint for name in names})


def measure(
    task: Task,
    workdir: Workdir,
    trained: Trained,
    names: Sequence[str],
    before: Mapping[str, Any],
    rival: Rival | None = None,
) -> None:
    """Measure a model on some splits, and write and print what it achieves.

    Args:
        task: of the run.
        workdir: of the run.
        trained: the model.
        names: of the splits.
        before: the results so far.
        rival: another run; its translations are compared with these.
    """
    found = {name: task.measure(trained.state, name) for name in names}
    for name, measured in found.items():
        if rival is not None:
            references = [example.target for example in task.examples(name)]
            against = rival.against(name, measured.answers, references)
            measured.scores[name]["against"] = against
    for name, measured in found.items():  # once all are measured, beside their scores
        if measured.answers is not None:
            workdir.keep_hypotheses(name, measured.answers)
    scores = {name: each for measured in found.values() for name, each in measured.scores.items()}
    report(task.config, workdir, task.learner, *trained, scores, before)
    if "test" in names:
        task.artifacts(trained.state, workdir)

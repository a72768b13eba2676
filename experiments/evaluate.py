"""Measure a trained model again, or on other data."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.config import Config
from experiments.config.build import differences, flat
from experiments.errors import as_usage_errors, one_of
from experiments.evaluation.other_run import OtherRun, load_other_run
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

    Splits with another text than those of the run have labels of their own, of `label_splits`.

    Args:
        config: of the run, or with other data.
        workdir: of the run.
        cache: where generated data is kept.
        split: the only one that is measured; all test splits by default.
        against: of another run; its translations are compared with these.

    Raises:
        UsageError: data without this split, a text that has changed although its name has not, or
            as `load_other_run`.
    """
    task = TASKS[config.task].load(config, workdir, cache)
    names = task.test_splits
    if split is not None:
        with as_usage_errors():
            one_of("--split", split, task.known_splits)
        names = (split,)
    labels = label_splits(task, workdir, names)
    other = None
    if against is not None:
        pairs = {labels[name]: task.examples(name) for name in names}
        tokenized = getattr(config.data, "tokenized", False)
        other = load_other_run(against, workdir, pairs, tokenized=tokenized)
    before = results_so_far(workdir)
    measure(task, workdir, restore(workdir, task), labels, before, other)


def label_splits(task: Task, workdir: Workdir, names: Sequence[str]) -> dict[str, str]:
    """Store the fingerprints of splits, and return the label of each in the results.

    The label is the name of the split, or for another text than that of the run the name and the
    fields of the data that have changed, as "test@test_2017"; if that is the label of a third text,
    digits of the fingerprint follow, as "test@test_2017-1f0c9a".

    Raises:
        UsageError: another text in the place of that of the run.
    """
    known = workdir.load_texts()
    texts = {name: task.splits[name].fingerprint for name in names}
    labels = {}
    for name, text in texts.items():
        labels[name] = name
        if known.get(name, text) != text and (changes := _changes(task, workdir, name)):
            label = _label(name, changes)
            labels[name] = label if known.get(label, text) == text else f"{label}-{text[:6]}"
    workdir.keep_texts({labels[name]: text for name, text in texts.items()})
    return labels


def _changes(task: Task, workdir: Workdir, split: str) -> dict[str, Any]:
    """Return the fields of the data that differ from those of the run and concern a split."""
    there, here = (each.to_dict()["data"] for each in (workdir.load_config(), task.config))
    others, values = {*task.known_splits} - {split}, flat({"data": here})
    return {
        name: values[name]
        for name in differences({"data": there}, {"data": here})
        if name.rpartition(".")[2] not in others
    }


def _label(split: str, changes: Mapping[str, Any]) -> str:
    """Return the name of a split and the changed values, as text that a file name may contain."""
    values = (_shown(name, value) for name, value in sorted(changes.items()))
    return "@".join([split, *(re.sub(r"[^\w.=+-]+", "_", value) for value in values)])


def _shown(name: str, value: Any) -> str:  # noqa: ANN401 - any field
    """Return what a label contains of a field."""
    if name == "data.path":
        return Path(value).resolve().name  # that of "." is empty
    return Path(value).name if isinstance(value, str) else f"{name.rpartition('.')[2]}={value}"


def measure(
    task: Task,
    workdir: Workdir,
    trained: Trained,
    labels: Mapping[str, str],
    before: Mapping[str, Any],
    other: OtherRun | None = None,
) -> None:
    """Measure a model on some splits, and write and print what it achieves.

    Args:
        task: of the run.
        workdir: of the run.
        trained: the model.
        labels: of the splits, as `label_splits` returns them.
        before: the results so far.
        other: another run; its translations are compared with these.
    """
    scores: dict[str, dict[str, Any]] = {}
    rows = {}
    for name, label in labels.items():
        measured = task.measure(trained.state, name)
        suffix = label.removeprefix(name)
        scores |= {f"{part}{suffix}": each for part, each in measured.scores.items()}
        if suffix:
            scores[label]["data"] = _changes(task, workdir, name)
        if measured.answers is not None:
            pairs = zip(task.examples(name), measured.answers, strict=True)
            rows[label] = [(pair.source, pair.target, answer) for pair, answer in pairs]
        if other is not None:
            references = [target for _, target, _ in rows[label]]
            scores[label]["against"] = other.against(label, measured.answers, references)
    for label, each in rows.items():  # after all are measured, together with their scores
        workdir.keep_hypotheses(label, each)
    report(task.config, workdir, task.learner, *trained, scores, before)
    if labels.get("test") == "test":
        task.artifacts(trained.state, workdir)

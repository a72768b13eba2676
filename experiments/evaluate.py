"""Measure a trained model again, on other data, with other decoding, or beside another run."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from experiments.config import Config
from experiments.config.build import differences, flat
from experiments.errors import UsageError, as_usage_errors, one_of
from experiments.registry import TASKS
from experiments.results import deciding, report, results_so_far
from experiments.scores import paired_bootstrap
from experiments.tasks.task import Task
from experiments.trained import Trained, restore
from experiments.workdir import Workdir


def evaluate(
    config: Config,
    workdir: Workdir,
    cache: Path,
    split: str | None = None,
    against: Workdir | None = None,
) -> None:
    """Measure the newest checkpoint of a run, and add its scores to the results file.

    Args:
        config: of the run, or with other data or decoding; see `label_splits`.
        workdir: of the run.
        cache: where generated data is kept.
        split: the only one that is measured; all test splits by default.
        against: of another run; its translations are compared with these.

    Raises:
        UsageError: data without this split, a text that has changed although its name has not, or
            another run that was not measured on the same sentences.
    """
    task = TASKS[config.task].load(config, workdir, cache)
    names = task.test_splits
    if split is not None:
        with as_usage_errors():
            one_of("--split", split, task.known_splits)
        names = (split,)
    labels = label_splits(task, workdir, names)
    others = other_translations(task, workdir, against, labels) if against else {}
    before = results_so_far(workdir)
    measure(task, workdir, restore(workdir, task), labels, before, others)


def label_splits(task: Task, workdir: Workdir, names: Sequence[str]) -> dict[str, str]:
    """Store the fingerprints of splits, and return the label of each in the results.

    The label is the name of the split and, where the text or the decoding is not that of the run,
    the fields that have changed, as "test@test_2017" or "test@num_beams=5"; if that is the label of
    a third text, digits of the fingerprint follow, as "test@test_2017-1f0c9a".

    Raises:
        UsageError: another text in the place of that of the run.
    """
    known, labels = workdir.load_fingerprints(), {}
    texts = {name: task.splits[name].fingerprint for name in names}
    for name, text in texts.items():
        changes = settings(task, workdir, name)
        if not any(field.startswith("data.") for field in changes):
            workdir.check_fingerprints({name: text})
        label = _label(name, changes)
        labels[name] = label if known.get(label, text) == text else f"{label}-{text[:6]}"
    workdir.save_fingerprints({labels[name]: text for name, text in texts.items()})
    return labels


def settings(task: Task, workdir: Workdir, split: str) -> dict[str, Any]:
    """Return the fields of another text, and of decoding, in which a split differs from the run."""
    there, here = (
        {"data": tree["data"], "decoding": _decoding(tree)}
        for tree in (workdir.load_config().to_dict(), task.config.to_dict())
    )
    text = task.splits[split].fingerprint
    if workdir.load_fingerprints().get(split, text) == text:  # it may have moved
        there["data"] = here["data"]
    others, values = {*task.known_splits} - {split}, flat(here)
    changed = differences(there, here)
    return {name: values[name] for name in changed if name.rpartition(".")[2] not in others}


def _decoding(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of decoding that scores depend on."""
    decoding = tree.get("decoding") or {}
    return deciding(decoding) if "metrics" in decoding else {}


def _label(split: str, changes: Mapping[str, Any]) -> str:
    """Return the name of a split and the changed values, as text that a file name may contain."""
    label = split
    for name, value in sorted(changes.items()):
        shown = f"{name.rpartition('.')[2]}={value}"
        if isinstance(value, str):
            shown = Path(value).resolve().name  # as that of the folder "."
        label += "@" + re.sub(r"[^\w.=+-]+", "_", shown)
    return label


def other_translations(
    task: Task, workdir: Workdir, theirs: Workdir, labels: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return workdir, other decoding, BLEU and hypotheses of another run, by the labels of splits.

    Splits with the same text correspond. Text that is tokenized already has "tok_bleu".

    Raises:
        UsageError: the same run, or one that was not measured on these sentences.
    """
    if theirs.path.resolve() == workdir.path.resolve():
        raise UsageError(f"--against needs another run than {workdir.path} itself")
    score = "tok_bleu" if getattr(task.config.data, "tokenized", False) else "bleu"
    config, splits = theirs.load_config().to_dict(), theirs.load_results()["splits"]
    texts, others = workdir.load_fingerprints(), {}
    for split, label in labels.items():
        same = [name for name, text in theirs.load_fingerprints().items() if text == texts[label]]
        name = next((name for name in (label, *same) if score in splits.get(name, {})), "")
        if name not in same:
            raise UsageError(
                f"{theirs.path} has no {score} of the sentences of the {label} split: "
                f"--mode=evaluate --split={split} --workdir={theirs.path} measures its own"
            )
        decoding = flat({"decoding": _decoding(config)}) | splits[name].get("settings", {})
        ours = flat({"decoding": _decoding(task.config.to_dict())})
        others[label] = {
            "workdir": str(theirs.path),
            "decoding": {
                field.removeprefix("decoding."): decoding[field]
                for field in ours
                if decoding[field] != ours[field]
            },
            score: splits[name][score],
            "hypotheses": theirs.load_hypotheses(name),
        }
    return others


def measure(
    task: Task,
    workdir: Workdir,
    trained: Trained,
    labels: Mapping[str, str],
    before: Mapping[str, Any],
    others: Mapping[str, dict[str, Any]] = MappingProxyType({}),
) -> None:
    """Measure a model on some splits, and write and print what it achieves.

    Args:
        task: of the run.
        workdir: of the run.
        trained: the model.
        labels: of the splits, see `label_splits`.
        before: the results so far.
        others: translations of another run, see `other_translations`.
    """
    scores: dict[str, dict[str, Any]] = {}
    rows = {}
    for name, label in labels.items():
        measured, answers = task.measure(trained.state, name)
        suffix = label.removeprefix(name)
        scores |= {f"{part}{suffix}": values for part, values in measured.items()}
        if suffix:
            scores[label]["settings"] = settings(task, workdir, name)
        if answers:
            pairs = zip(task.examples(name), answers, strict=True)
            rows[label] = [(pair.source, pair.target, answer) for pair, answer in pairs]
        if label in others:
            _, references, answers = zip(*rows[label], strict=True)
            theirs, tokenized = others[label].pop("hypotheses"), "tok_bleu" in others[label]
            p = paired_bootstrap(theirs, answers, references, tokenized=tokenized)
            scores[label]["against"] = {**others[label], "p": p}
    for label, answers in rows.items():  # after all are measured, together with their scores
        workdir.save_hypotheses(label, answers)
    about = {
        "step": int(trained.state.step),
        "ended": trained.ended,
        "training_seconds": round(trained.seconds, 1),
        "parameters": task.learner.num_parameters,
    }
    report(workdir, about, scores, before)
    if labels.get("test") == "test":
        task.artifacts(trained.state, workdir)

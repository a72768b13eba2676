"""Measure a trained model again, on other data, with other decoding, or beside another run."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from experiments.config import Config
from experiments.config.build import differences, flat, is_within
from experiments.errors import UsageError, as_usage_errors, one_of
from experiments.files import write_whole
from experiments.metrics import paired_bootstrap
from experiments.records import line_of
from experiments.registry import TASKS
from experiments.tasks.task import Scores, Task
from experiments.trained import Trained, restore, smoke_test
from experiments.workdir import Workdir, saved_steps

BOOTSTRAP = "paired bootstrap over sentences; it ignores the variance between seeds"
# Fields of `decoding` that do not change a translation.
WITHOUT_EFFECT_ON_OUTPUT = {"hypotheses", "n_best", "metrics"}


def evaluate(
    config: Config,
    workdir: Workdir,
    cache: Path,
    split: str | None = None,
    against: Workdir | None = None,
) -> None:
    """Measure the newest checkpoint of a run, and add its scores to the results file.

    The label of a split in the results is its name and, where the text or the decoding is not that
    of the run, the fields that have changed, as "test@test_2017" or "test@num_beams=5". If that is
    the label of a third text, digits of the fingerprint follow, as "test@test_2017-1f0c9a".

    `config` is that of the run, or has other data or decoding. One split is measured alone; by
    default all test splits are. The translations of `against`, another run, are compared with them.

    Raises:
        UsageError: data without this split, a text that has changed although its name has not, or
            another run that was not measured on the same sentences.
    """
    task = TASKS[config.task].load(config, workdir, cache)
    if split is not None:
        with as_usage_errors():
            one_of("--split", split, task.known_splits)
    names = task.test_splits if split is None else (split,)
    if workdir.results.exists():
        workdir.load_results()  # a damaged file is reported before anything is measured
    known, labels, texts, settings = workdir.load_fingerprints(), {}, {}, {}
    for name in names:
        settings[name] = changes = changed_settings(task, workdir, name, known)
        text, label = task.splits[name].fingerprint, _label(name, changes)
        if not any(field.startswith("data.") for field in changes):
            texts[name] = text
        labels[name] = label if known.get(label, text) == text else f"{label}-{text[:6]}"
        texts[labels[name]] = text
    workdir.save_fingerprints(texts)
    others = other_translations(task, workdir, against, labels) if against else {}
    measure(task, workdir, restore(workdir, task), labels, settings, others)


def changed_settings(
    task: Task, workdir: Workdir, split: str, fingerprints: Mapping[str, str]
) -> dict[str, Any]:
    """Return the fields of another text, and of decoding, in which a split differs from the run."""
    there, here = workdir.load_config().to_dict(), task.config.to_dict()
    text, parts = task.splits[split].fingerprint, []
    if fingerprints.get(split, text) != text:  # one that has only moved is the same
        parts.append("data")
    if hasattr(task.config.decoding, "metrics"):  # of a task whose scores depend on decoding
        parts.append("decoding")
    ignored, values = {*task.known_splits, *WITHOUT_EFFECT_ON_OUTPUT} - {split}, flat(here)
    changed = [name for name in differences(there, here) if is_within(name, parts)]
    return {name: values[name] for name in changed if name.rpartition(".")[2] not in ignored}


def _label(split: str, changes: Mapping[str, Any]) -> str:
    """Return the name of a split and the changed values, as text that a file name may contain."""
    for name, value in sorted(changes.items()):
        shown = f"{name.rpartition('.')[2]}={value}"
        if isinstance(value, str):
            shown = Path(value).resolve().name  # as that of the folder "."
        split += "@" + re.sub(r"[^\w.=+-]+", "_", shown)
    return split


def other_translations(
    task: Task, workdir: Workdir, theirs: Workdir, labels: Mapping[str, str]
) -> Scores:
    """Return workdir, BLEU and hypotheses of another run, by the labels of splits.

    The same run, or one that was not measured on these sentences, is a UsageError.
    """
    if theirs.path.resolve() == workdir.path.resolve():
        raise UsageError(f"--against needs another run than {workdir.path} itself")
    score = "tok_bleu" if getattr(task.config.data, "tokenized", False) else "bleu"
    splits, others = theirs.load_results()["splits"], {}
    ours, texts = workdir.load_fingerprints(), theirs.load_fingerprints()
    for split, label in labels.items():
        if texts.get(label) != ours[label] or score not in splits.get(label, {}):
            raise UsageError(
                f"{theirs.path} has no {score} of the sentences of the {label} split: "
                f"--mode=evaluate --split={split} --workdir={theirs.path} measures its own"
            )
        others[label] = {
            "workdir": str(theirs.path),
            score: splits[label][score],
            "hypotheses": theirs.load_hypotheses(label),
        }
    return others


def measure(
    task: Task,
    workdir: Workdir,
    trained: Trained,
    labels: Mapping[str, str],
    settings: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    others: Mapping[str, dict[str, Any]] = MappingProxyType({}),
) -> None:
    """Measure a model on some splits, and write and print what it achieves.

    By split, `labels` are those in the results, and `settings` the fields of another text and other
    decoding than in the run; `others` are translations of another run by label.
    """
    scores, rows = {}, {}
    for name, label in labels.items():
        measured, answers = task.measure(trained.state, name)
        scores |= {f"{part}{label.removeprefix(name)}": own for part, own in measured.items()}
        if settings.get(name):
            scores[label]["settings"] = settings[name]
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
        "train_steps": task.config.train.steps,
        "training_seconds": round(trained.seconds, 1),
        "parameters": task.learner.num_parameters,
    }
    report(workdir, about, scores)
    if labels.get("test") == "test":
        task.artifacts(trained.state, workdir)


def report(workdir: Workdir, about: Mapping[str, Any], scores: Mapping[str, Any]) -> None:
    """Add the scores of splits to the results file, and print them, one split a line.

    Earlier scores stay if they are of the same step.
    """
    # Metrics and tasks of plugins return numbers of NumPy and jax too.
    scores = json.loads(json.dumps(scores, default=float))
    before = workdir.load_results() if workdir.results.exists() else about | {"splits": {}}
    step = about["step"]
    kept = before["splits"] if before["step"] == step else {}
    if others := before["splits"].keys() - kept.keys() - scores.keys():
        print(f"scores of step {before['step']:,} are left out: {', '.join(sorted(others))}")
    splits = kept | {label: kept.get(label, {}) | values for label, values in scores.items()}
    write_whole(workdir.results, json.dumps({**about, "splits": splits}, indent=2) + "\n")
    last = max([step, *saved_steps(workdir.checkpoints)])
    of_step = "" if step == last else f"; measured: step {step:,}"
    print(f"{last:,} steps, {about['training_seconds']} s of training{of_step}{smoke_test(last)}")
    for label, values in scores.items():
        print(line_of(label, values))
        if settings := values.get("settings"):
            print(f"{'':14s}{', '.join(f'{name}={value}' for name, value in settings.items())}")
        if other := values.get("against"):
            print(f"{'':14s}against {line_of(other['workdir'], other)} ({BOOTSTRAP})")
    print(f"everything is in {workdir.path}")

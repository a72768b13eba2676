"""Metrics of answers, and the files with the measurements of a run."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu
from sacrebleu.significance import PairedTest
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from experiments.errors import UsageError
from experiments.files import append, named_errors, read_json_lines
from experiments.registry import METRICS

SACREBLEU = {  # Post 2018
    "bleu": sacrebleu.BLEU,
    "tok_bleu": partial(sacrebleu.BLEU, tokenize="none", force=True),  # of tokenized text
    "chrf": sacrebleu.CHRF,  # Popović 2015
}


def answer_scores(
    metrics: Sequence[str],
    answers: Sequence[str],
    references: Sequence[str],
    *,
    tokenized: bool = False,
) -> dict[str, Any]:
    """Return the number of sentences, and the named metrics of answers.

    A metric that returns a number is stored under its name; one that returns a mapping may have
    several. BLEU of text that is tokenized already is not comparable with that of plain text, so
    "bleu" is then replaced by "tok_bleu".
    """
    scores: dict[str, Any] = {"sentences": len(references)}
    for name in metrics:
        name = "tok_bleu" if tokenized and name == "bleu" else name
        values = METRICS[name](answers, references)
        values = values if isinstance(values, Mapping) else {name: values}
        for key, value in values.items():
            scores[key] = value if isinstance(value, str) else float(value)
    return scores


@METRICS("exact_match")
def exact_match(answers: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of the answers that equal their reference."""
    return sum(map(str.__eq__, answers, references)) / len(references)


def corpus_score(name: str, answers: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return BLEU or chrF, 0 to 100, and the signature of sacreBLEU."""
    metric = SACREBLEU[name]()
    score = metric.corpus_score([*answers], [[*references]]).score
    return {name: score, f"{name.removeprefix('tok_')}_signature": str(metric.get_signature())}


METRICS.update({name: partial(corpus_score, name) for name in SACREBLEU})


def paired_bootstrap(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    *,
    tokenized: bool = False,
) -> float:
    """Return the p-value of the difference of two systems in BLEU (Koehn 2004); 1 if there is none.

    The sentences are resampled 1,000 times, and the systems are not: the variance between training
    seeds is ignored, so a small p does not show that another seed would have the difference.
    """
    test = PairedTest(
        [("first", [*first]), ("second", [*second])],
        {"BLEU": SACREBLEU["tok_bleu" if tokenized else "bleu"]()},
        [[*references]],
        test_type="bs",
        n_samples=1_000,
    )
    one, other = test()[1]["BLEU"]
    return 1.0 if one.score == other.score else other.p_value


class Metrics(AbstractContextManager):
    """Appends rows of numbers to JSON lines and to TensorBoard event files.

    Two runs of one config write the same bytes to `metrics.jsonl`.
    """

    def __init__(self, directory: Path, *, step: int) -> None:
        """Open the files of a workdir; TensorBoard drops events after `step`."""
        self._directory = directory
        # Events are written by this thread, not by that of a `SummaryWriter`: if it ends, as on a
        # full disk, its queue blocks the training.
        self._tensorboard = directory / "tensorboard"
        start = SessionLog(status=SessionLog.START)
        with named_errors(self._tensorboard):
            self._tensorboard.mkdir(exist_ok=True)
            self._events = EventsWriter(str(self._tensorboard / "events"))
            self._events.write_event(Event(step=step + 1, session_log=start))
            self._events.flush()

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Append a row of numbers about a split, or about speed and memory if it is "timing"."""
        name, row = "metrics.jsonl", {"step": step, "split": split, **values}
        if split == "timing":
            name, row = "timing.jsonl", {"step": step, **values}
        append(self._directory / name, json.dumps(row, default=float) + "\n")
        with named_errors(self._tensorboard):
            for label, value in values.items():
                if math.isfinite(value):  # tensorboardX would log a warning
                    event = Event(wall_time=time.time(), step=step)
                    event.summary.CopyFrom(scalar(f"{split}/{label}", value))
                    self._events.write_event(event)
            self._events.flush()

    def __exit__(self, *exception: object) -> None:
        with named_errors(self._tensorboard):
            self._events.close()


def read_metrics(directory: Path) -> list[dict]:
    """Return the rows of `metrics.jsonl`, oldest first, without a last line cut short by a kill.

    Raises:
        UsageError: another line that cannot be read.
    """
    path = directory / "metrics.jsonl"
    return read_json_lines(path, {"step": int, "split": str}) if path.exists() else []


def mean_of_steps(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return means over tokens, the gradient norm over steps, and the last learning rate.

    Skipped steps are counted and belong to no mean, unless all were skipped.
    """
    used = [step for step in steps if not step.get("skipped")] or steps
    tokens = np.maximum([step["tokens"] for step in used], 1e-9)  # a batch may have none
    row = {}
    for name in used[0]:
        if name not in ("tokens", "skipped"):
            weights = None if name == "gradient_norm" else tokens
            row[name] = float(np.average([step[name] for step in used], weights=weights))
    if "skipped" in steps[0]:
        row["skipped"] = sum(step["skipped"] > 0 for step in steps)
    return row | {"learning_rate": steps[-1]["learning_rate"]}


def start_wandb(project: str, folder: Path, config: dict[str, Any]) -> None:
    """Send the TensorBoard events of a run to a project of Weights & Biases until Python ends.

    Raises:
        UsageError: `wandb` is not installed.
    """
    try:
        import wandb
    except ModuleNotFoundError as error:
        raise UsageError('--wandb needs an extra: pip install "attention-jax[wandb]"') from error
    options = {"name": folder.name, "dir": str(folder), "config": config}
    wandb.init(project=project, sync_tensorboard=True, **options)

"""What is explained: a sentence, the lines of a file, or the first examples of a split."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from experiments.analysis.collect import Example
from experiments.data.pairs import SentencePair
from experiments.errors import UsageError, as_usage_errors
from experiments.files import read_lines

if TYPE_CHECKING:
    from experiments.learner import TrainState
    from experiments.tasks.task import Task

SHOWN = 3  # examples of a file or a split that are drawn
MEASURED = 100  # examples of a split in the table of heads


class Read(NamedTuple):
    """What is explained.

    Attributes:
        drawn: examples that are drawn, by name.
        pairs: of a file, or the first ones of a split.
        measured: examples of the pairs.
    """

    drawn: dict[str, Example]
    pairs: list[SentencePair]
    measured: list[Example]


def read_sentence(task: "Task", state: "TrainState", sentence: str) -> Read:
    """Read a sentence."""
    with as_usage_errors("--sentence: "):
        return Read({"": task.example(state, sentence)}, [], [])


def read_file(task: "Task", state: "TrainState", path: Path) -> Read:
    """Read a file of sentences or pairs."""
    pairs = read_pairs(path)
    every = own_examples(task, state, path, pairs)
    drawn = {str(at): each for at, each in enumerate(every[:SHOWN], start=1)}
    return Read(drawn, pairs, every)


def read_split(task: "Task", state: "TrainState", split: str) -> Read:
    """Read the first examples of a split; the model generates the targets of those drawn."""
    pairs = task.first_examples(split, MEASURED)
    drawn = {
        str(at): task.example(state, pair.source) for at, pair in enumerate(pairs[:SHOWN], start=1)
    }
    return Read(drawn, pairs, [task.example(state, pair.source, pair.target) for pair in pairs])


def read_pairs(path: Path) -> list[SentencePair]:
    """Read sentences, one a line; a tab separates a sentence from its translation.

    Raises:
        UsageError: a file that cannot be read or is empty, or a line with several tabs.
    """
    try:
        lines = read_lines(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"--file={path} cannot be read: {error}") from error
    if not lines:
        raise UsageError(f"--file={path} is empty")
    for number, line in enumerate(lines, start=1):
        if line.count("\t") > 1:
            raise UsageError(f"--file={path}, line {number}: a line has at most one tab")
    return [SentencePair(*line.split("\t")) for line in lines]


def own_examples(
    task: "Task", state: "TrainState", path: Path, pairs: Sequence[SentencePair]
) -> list[Example]:
    """Return what a model reads of pairs; it generates the targets that are not given.

    Raises:
        UsageError: a line that the model cannot read.
    """
    examples = []
    for number, pair in enumerate(pairs, start=1):
        try:
            examples.append(task.example(state, pair.source, pair.target or None))
        except ValueError as error:
            raise UsageError(f"--file={path}, line {number}: {error}") from error
    return examples

"""Predictions: the answers of a model to lines of input, printed as text or as JSON."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

Input = TypeVar("Input")

SURROGATE = re.compile("[\ud800-\udfff]")  # in place of a byte that is not UTF-8


class Choice(NamedTuple):
    """What a model may answer at a place of its input.

    Attributes:
        place: among the labels of `Task.example`; None for an answer about the whole input.
        candidates: answers with their probabilities, the most probable first.
    """

    place: int | None
    candidates: Sequence[tuple[str, float]]


class Prediction(NamedTuple):
    """The answer of a model to one line.

    Attributes:
        text: the answer, in pieces that are printed as they come.
        details: returns the answer as JSON values, with probabilities; called for JSON alone.
        note: a sentence for standard error, such as a list of unknown words; "" for none.
        error: the reason why there is no answer; "" if there is one.
        choices: of an encoder, which chooses each part of its answer by itself.
    """

    text: Iterable[str] = ()
    details: Callable[[], Mapping[str, Any]] = dict
    note: str = ""
    error: str = ""
    choices: Sequence[Choice] = ()


def predictions(
    lines: Sequence[str],
    read: Callable[[str], Input],
    answer: Callable[[list[Input]], Iterable[Prediction]],
    *,
    reads_blank: bool = False,
) -> Iterator[Prediction]:
    """Yield the prediction of each line; a blank line has an empty one.

    Args:
        lines: as a person typed them.
        read: converts a line to an input of the model, or raises a ValueError in one sentence.
        answer: returns the predictions of inputs.
        reads_blank: whether the model has an answer to a blank line.
    """

    def convert(line: str) -> Input | Prediction:
        if SURROGATE.search(line):
            return Prediction(error="the line has bytes that are no UTF-8")
        if not (line.strip() or reads_blank):
            return Prediction()
        try:
            return read(line)
        except ValueError as error:
            return Prediction(error=str(error))

    inputs = [convert(line) for line in lines]
    answers = iter(answer([each for each in inputs if not isinstance(each, Prediction)]))
    for each in inputs:
        yield each if isinstance(each, Prediction) else next(answers)


def show(groups: Iterable[Iterable[Prediction]], form: str) -> int:
    """Print one line for each prediction, and its note or error to standard error.

    Args:
        groups: predictions of lines that came together.
        form: "text" or "json".

    Returns:
        Number of lines without an answer because of an error.
    """
    failed = 0
    every = (prediction for group in groups for prediction in group)
    for number, prediction in enumerate(every, start=1):
        if form == "json":
            error = {"error": prediction.error} if prediction.error else {}
            print(json.dumps({**prediction.details(), **error}, ensure_ascii=False), end="")
        for piece in prediction.text if form == "text" else ():
            print(piece, end="", flush=True)
        print(flush=True)
        if message := prediction.error or prediction.note:
            print(f"line {number}: {message}", file=sys.stderr, flush=True)
        failed += bool(prediction.error)
    return failed

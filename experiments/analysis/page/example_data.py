"""Examples of the page: attention, translations, and how far the vectors of words move."""

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attention.decoding import GNMT
from experiments.analysis.collect import (
    CROSS,
    DECODER,
    ENCODER,
    Attended,
    AttentionMaps,
    Example,
    title_of,
)
from experiments.data.tokenizers import EOS, Tokenizer
from experiments.learner import TrainState

if TYPE_CHECKING:
    from experiments.tasks.prediction import Prediction
    from experiments.tasks.task import Task

NUM_BEAMS = 5  # translations of a sentence
ALTERNATIVES = 5  # tokens that are listed for each step
CANDIDATES = 10  # classes that are listed, or words for a gap
AT_ONCE = 20  # examples of a pass
TINY = 1e-30  # in place of a norm or a probability of 0
LARGEST_BYTE = 255  # the weight 1 of a stored map


class Answer(NamedTuple):
    """What a model reads in a pass, and predicts.

    Attributes:
        example: that the model reads.
        predicted: ids that follow those that the decoder reads; empty for an encoder alone.
        given: the translation, if the model did not write it.
    """

    example: Example
    predicted: Sequence[int]
    given: str = ""


def examples_data(
    task: "Task", state: TrainState, sources: Sequence[Any], targets: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return what a page shows of each source: attention, vectors, and the n best translations.

    Args:
        task: of the model.
        state: of the model.
        sources: texts as people type them, or images.
        targets: given translations, "" for none; those of the model follow.

    Raises:
        ValueError: a text that the model cannot read.
        UsageError: a model that does not attend.
    """
    answers = [*_answers(task, state, sources, targets)]
    rows = [one.example for several in answers for one in several]
    is_encoder = all(DECODER not in example.inputs for example in rows)
    chosen = task.predict(state, sources) if is_encoder else repeat(None, len(sources))
    passes = task.collector(state.parameters, rows, batch_size=min(AT_ONCE, len(rows)))
    tokenizer = task.tokenizers[max(task.sides)]
    penalty = getattr(task.config.decoding, "length_penalty", 0.0)
    found = []
    every_source = zip(sources, answers, chosen, strict=True)
    for number, (source, several, prediction) in enumerate(every_source, start=1):
        every = [next(passes) for _ in several]
        data = attention_data(several[0].example, every[0])
        data["name"] = source if isinstance(source, str) else f"example {number}"
        data["translations"] = [
            {"text": one.given or _text(task, one, attended), "given": bool(one.given)}
            | steps_data(tokenizer, one.predicted, attended.logits[DECODER], penalty)
            for one, attended in zip(several, every, strict=True)
            if len(one.predicted)
        ] or (choices_data(prediction) if prediction else [])
        found.append(data)
    return found


def translates(task: "Task") -> bool:
    """Return whether a task has texts on both sides, which beam search translates."""
    return len(task.sides) == 2 and task.config.decoding is not None


def attention_data(example: Example, attended: Attended) -> dict[str, Any]:
    """Return labels, maps and the movement of vectors of one example."""
    return {
        "stacks": {
            stack: {
                "labels": [*labels],
                "special": [*example.special[stack]],
                "ids": example.inputs[stack].tolist() if example.inputs[stack].ndim == 1 else [],
                "unknown": [*example.unknown.get(stack, ())],
            }
            for stack, labels in example.labels.items()
        },
        "predicted": [*example.predicted],
        "continuation": example.continuation,
        "maps": {kind: map_data(maps) for kind, maps in attended.maps.items()},
        "movement": {
            stack: distances(vectors).round(4).tolist()
            for stack, vectors in attended.hidden_states.items()
        },
    }


def map_data(maps: AttentionMaps) -> dict[str, Any]:
    """Return the attention of one kind; each weight is off by at most 1 / 510."""
    weights = np.rint(LARGEST_BYTE * maps.weights).astype(np.uint8)
    return {
        "title": title_of(maps.kind),
        "layers": [*map(int, maps.layers)],
        "shape": [*weights.shape],
        "queries": [*maps.queries],
        "keys": [*maps.keys],
        "weights": base64.b64encode(weights.tobytes()).decode(),
    }


def distances(vectors: np.ndarray) -> np.ndarray:
    """Return how far each layer moves each vector, as cosine distances `[layers, T]`.

    Args:
        vectors: `[1 + layers, T, D]`, the inputs of the stack and the outputs of its layers.
    """
    vectors = vectors.astype(np.float64)
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    units = vectors / np.maximum(norms, TINY)
    return 1 - (units[:-1] * units[1:]).sum(axis=-1)


def steps_data(
    tokenizer: Tokenizer, predicted: Sequence[int], logits: np.ndarray, length_penalty: float = 0.0
) -> dict[str, Any]:
    """Return probability and alternatives of each token that a decoder predicts, and their score.

    The query at place t predicts token t.

    Args:
        tokenizer: of these tokens.
        predicted: their ids.
        logits: `[T, V]`, at least one row for each of them.
        length_penalty: alpha of `attention.decoding.GNMT`.
    """
    logits = logits[: len(predicted)].astype(np.float64)
    log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    best = np.argsort(-log_probs, axis=-1, kind="stable")[:, :ALTERNATIVES]
    probabilities = np.exp(np.take_along_axis(log_probs, best, axis=-1)).round(5)
    chosen = log_probs[np.arange(len(predicted)), predicted]
    return {
        "places": [*range(len(predicted))],
        "ids": [*map(int, predicted)],
        "tokens": [*map(tokenizer.token, predicted)],
        "log_probs": chosen.round(5).tolist(),
        "score": round(float(chosen.sum() / GNMT(length_penalty)(len(predicted))), 5),
        "confidence": round(float(np.exp(chosen.mean())), 5),
        "alternatives": [
            [[tokenizer.token(each), number] for each, number in zip(*row, strict=True)]
            for row in zip(best.tolist(), probabilities.tolist(), strict=True)
        ],
    }


def choices_data(prediction: "Prediction") -> list[dict[str, Any]]:
    """Return the answer of an encoder in the form of a translation; [] if it chooses nothing."""
    if not prediction.choices:
        return []
    ranked = [candidates[:CANDIDATES] for _, candidates in prediction.choices]
    return [
        {
            "text": "".join(prediction.text),
            "places": [place for place, _ in prediction.choices],
            "tokens": [candidates[0][0] for candidates in ranked],
            "log_probs": [math.log(max(candidates[0][1], TINY)) for candidates in ranked],
            "alternatives": [
                [[label, round(number, 5)] for label, number in candidates] for candidates in ranked
            ],
        }
    ]


def _text(task: "Task", answer: Answer, attended: Attended) -> str:
    """Return the text of an answer; that of a translation has copies of unknown words."""
    example = answer.example
    if not translates(task):
        return task.tokenizers.source.decode(example.inputs[DECODER].tolist())
    weights = attended.maps[CROSS].weights.mean(axis=(0, 1))
    unknown = {place: example.labels[ENCODER][place] for place in example.unknown[ENCODER]}
    return task.with_copies(answer.predicted, weights, unknown)[1]


def _answers(
    task: "Task", state: TrainState, sources: Sequence[Any], targets: Sequence[str]
) -> Iterator[list[Answer]]:
    """Yield the answers to each source: a given one, that of the run, and the n best."""
    if translates(task):
        found = _translations(task, state, sources)
        for source, target, answers in zip_longest(sources, targets, found, fillvalue=""):
            yield ([_given(task, state, source, target)] if target else []) + answers
        return
    for source in sources:
        example = task.example(state, source)
        ids = example.inputs[DECODER].tolist() if DECODER in example.inputs else []
        yield [Answer(example, ids[1:])]


def _given(task: "Task", state: TrainState, source: str, target: str) -> Answer:
    example = task.example(state, source, target)
    return Answer(example, [*example.inputs[DECODER][1:].tolist(), EOS], target)


def _translations(
    task: "Task", state: TrainState, sources: Sequence[str]
) -> Iterator[list[Answer]]:
    """Yield the translation of each source by `config.decoding`, and those of beam search."""
    num_beams = min(max(NUM_BEAMS, task.config.decoding.num_beams), len(task.tokenizers.target))
    decoding = replace(task.config.decoding, num_beams=num_beams, n_best=min(NUM_BEAMS, num_beams))
    sentences = [*map(task.read, sources)]
    ids = [sentence.ids for sentence in sentences]
    own = task.translate_ids(state.parameters, ids)
    found = task.hypotheses(state.parameters, sentences, decoding)
    for source, first, hypotheses in zip(sources, own, found, strict=True):
        every = dict.fromkeys([tuple(first.tolist()), *(tuple(one["ids"]) for one in hypotheses)])
        several = [[*each] for each in every][:NUM_BEAMS]
        yield [Answer(task.translated(source, each), each) for each in several]

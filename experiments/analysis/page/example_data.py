"""Examples of the page: attention, translations, and how far the vectors of words move."""

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attention.decoding import GNMT
from experiments.analysis.collect import (
    CROSS,
    DECODER,
    ENCODER,
    Attended,
    AttentionMaps,
    Collector,
    Example,
)
from experiments.data.examples import SentencePair
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
    task: "Task", state: TrainState, pairs: Sequence[SentencePair]
) -> list[dict[str, Any]]:
    """Return what a page shows of each source: attention, vectors, and the n best translations.

    Args:
        task: of the model.
        state: of the model.
        pairs: with sources as people type them, or images. Translations of the model follow a
            target that is given.

    Raises:
        ValueError: a text that the model cannot read.
        UsageError: a model that does not attend.
    """
    sources = [pair.source for pair in pairs]
    if translates(task):
        answers = [*_translations(task, state, pairs)]
    else:
        read = [task.example(state, source) for source in sources]
        answers = [[Answer(example, example.inputs.get(DECODER, ())[1:])] for example in read]
    rows = [answer.example for of_source in answers for answer in of_source]
    has_decoder = any(DECODER in example.inputs for example in rows)
    predictions = repeat(None) if has_decoder else task.predict(state, sources)
    collector = Collector(task, logits_of=(DECODER,))
    passes = collector(state.parameters, rows, batch_size=min(AT_ONCE, len(rows)))
    tokenizer = task.tokenizers[max(task.sides)]
    penalty = getattr(task.config.decoding, "length_penalty", 0.0)
    examples = []
    for source, of_source, prediction in zip(sources, answers, predictions, strict=False):
        every = [next(passes) for _ in of_source]
        data = attention_data(of_source[0].example, every[0])
        data["name"] = source if isinstance(source, str) else f"example {len(examples) + 1}"
        data["translations"] = [
            {"text": answer.given or _text(task, answer, attended), "given": bool(answer.given)}
            | steps_data(tokenizer, answer.predicted, attended.logits[DECODER], penalty)
            for answer, attended in zip(of_source, every, strict=True)
            if len(answer.predicted)
        ] or choices_data(prediction)
        examples.append(data)
    return examples


def translates(task: "Task") -> bool:
    """Return whether a task is a translation, whose model also has beam search."""
    return hasattr(task, "translator")


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
        "title": maps.title,
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


def choices_data(prediction: "Prediction | None") -> list[dict[str, Any]]:
    """Return the answer of an encoder in the form of a translation; [] if it chooses nothing."""
    if not (prediction and prediction.choices):
        return []
    ranked = [choice.candidates[:CANDIDATES] for choice in prediction.choices]
    return [
        {
            "text": "".join(prediction.text),
            "places": [choice.place for choice in prediction.choices],
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
    return task.translator.with_copies(answer.predicted, weights, unknown)[1]


def _translations(
    task: "Task", state: TrainState, pairs: Sequence[SentencePair]
) -> Iterator[list[Answer]]:
    """Yield the given translation of each source, that by `config.decoding`, and the n best."""
    num_beams = min(max(NUM_BEAMS, task.config.decoding.num_beams), len(task.tokenizers.target))
    decoding = replace(task.config.decoding, num_beams=num_beams, n_best=min(NUM_BEAMS, num_beams))
    translator = task.make_translator(task.stopping, decoding)
    sentences = [task.read(pair.source) for pair in pairs]
    ids = [sentence.ids for sentence in sentences]
    own = task.translator.translate_ids(state.parameters, ids, batch_size=1)
    ranked = translator.hypotheses(
        state.parameters, sentences, batch_size=min(AT_ONCE, len(sentences))
    )
    for (source, target, *_), first, hypotheses in zip(pairs, own, ranked, strict=True):
        given = []
        if target:
            example = task.example(state, source, target)
            given = [Answer(example, [*example.inputs[DECODER][1:].tolist(), EOS], target)]
        every = dict.fromkeys([tuple(first.tolist()), *(tuple(best.ids) for best in hypotheses)])
        several = [[*written] for written in every][:NUM_BEAMS]
        yield given + [Answer(task.translated(source, written), written) for written in several]

"""Senses of ambiguous words in the vectors of every layer, by their nearest neighbours.

A layer adds position, feed-forward layers and attention to a vector. If its vectors distinguish
senses and static ones do not, they contain the context; the comparison does not show which part
added it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.analysis.collect import ENCODER, Collector
from experiments.analysis.figures import FORMATS, new_figure, save
from experiments.analysis.senses import Occurrence, neighbour_mean, occurrences
from experiments.tasks.task import Task
from experiments.training.step import TrainState

FEWEST = 20  # uses of a word
WINDOW = 5  # neighbours on either side
AT_ONCE = 64  # sentences of a pass
STATIC, NEIGHBOURS = "input embedding", "mean of neighbours"
INPUT, OUTPUT = "input with position", "encoder output"
# Colours and shapes that colour-blind people can distinguish (Okabe and Ito 2008).
MARKS = (("#0072b2", "o"), ("#d55e00", "^"), ("#009e73", "s"), ("#cc79a7", "D"))


def nearest_senses(vectors: np.ndarray, senses: np.ndarray) -> np.ndarray:
    """Return the sense of the nearest other use for each use, by the cosine: `[M]`.

    Equally near uses vote; if their vote is tied, the commonest sense of them all decides.

    Args:
        vectors: `[M, D]` of the uses of a word.
        senses: `[M]`.
    """
    names, numbers = np.unique(senses, return_inverse=True)
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    cosines = units @ units.T
    np.fill_diagonal(cosines, -np.inf)
    is_nearest = cosines >= cosines.max(axis=-1, keepdims=True) - 1e-6
    votes = is_nearest @ np.eye(len(names))[numbers]
    return names[(votes + np.bincount(numbers) / (2 * len(numbers))).argmax(axis=-1)]


def frequent(found: Sequence[Occurrence], fewest: int = FEWEST) -> list[Occurrence]:
    """Return the occurrences of words that are used often, and in more than one sense."""
    senses: dict[str, list[str]] = {}
    for one in found:
        senses.setdefault(one.word, []).append(one.sense)
    kept = {word for word, each in senses.items() if len(each) >= fewest and len({*each}) > 1}
    return [one for one in found if one.word in kept]


def sense_vectors(
    task: Task, state: TrainState, collector: Collector
) -> tuple[list[Occurrence], dict[str, np.ndarray]]:
    """Return the frequent ambiguous words, and vectors `[M, D]` of each kind.

    The sentences are those of all splits but train: one split has too few uses of a word.
    """
    pairs = [
        pair for split in task.known_splits if split != "train" for pair in task.examples(split)
    ]
    found = frequent(occurrences(pairs))
    sentences = sorted({one.sentence for one in found})
    examples = [task.example(state, pairs[each].source, pairs[each].target) for each in sentences]
    static: dict[str, np.ndarray] = {}
    rows: dict[str, dict[int, np.ndarray]] = {}
    words = sorted({label for example in examples for label in example.labels[ENCODER][:-1]})
    alone = [task.example(state, word, "") for word in words]
    for word, attended in zip(
        words, collector(state.parameters, alone, batch_size=AT_ONCE), strict=True
    ):
        static[word] = attended.hidden_states[ENCODER][0, 0]
    at = {sentence: number for number, sentence in enumerate(sentences)}
    for number, attended in enumerate(collector(state.parameters, examples, batch_size=AT_ONCE)):
        for layer, state_of_layer in enumerate(attended.hidden_states[ENCODER]):
            name = f"layer {layer}" if layer else INPUT
            rows.setdefault(name, {})[number] = state_of_layer
        rows.setdefault(OUTPUT, {})[number] = attended.features[ENCODER]
    vectors: dict[str, list[np.ndarray]] = {STATIC: [], NEIGHBOURS: []}
    for one in found:
        number = at[one.sentence]
        read = np.stack([static[label] for label in examples[number].labels[ENCODER][:-1]])
        vectors[STATIC].append(read[one.place])
        vectors[NEIGHBOURS].append(neighbour_mean(read, one.place, WINDOW))
        for name, states in rows.items():
            vectors.setdefault(name, []).append(states[number][one.place])
    return found, {name: np.stack(each) for name, each in vectors.items() if each}


def senses_table(
    found: Sequence[Occurrence], vectors: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    """Return a row for each kind of vector: how often the nearest neighbour has the same sense."""
    words, senses = (np.array([getattr(one, name) for one in found]) for name in ("word", "sense"))
    rows, before = [], None
    common = 0
    for word in np.unique(words):
        common += np.unique(senses[words == word], return_counts=True)[1].max()
    for name, each in vectors.items():
        right = sum(
            np.sum(
                nearest_senses(each[words == word], senses[words == word]) == senses[words == word]
            )
            for word in np.unique(words)
        )
        is_state = name not in (STATIC, NEIGHBOURS)
        moved = _cosine_distance(before, each) if is_state and before is not None else ""
        before = each if is_state else before
        rows.append(
            {
                "vector": name,
                "accuracy": 100 * float(right / len(found)),
                "commonest sense": 100 * float(common / len(found)),
                "moved by": moved,
                "words": len({*words.tolist()}),
                "uses": len(found),
            }
        )
    return rows


def _cosine_distance(before: np.ndarray, after: np.ndarray) -> float:
    """Return the mean of 1 - cosine over the rows of two arrays `[M, D]`."""
    norms = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
    return float(np.mean(1 - (before * after).sum(axis=-1) / np.maximum(norms, 1e-12)))


def principal_components(vectors: np.ndarray, number: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Return the first coordinates `[M, number]` of vectors and their shares of the variance."""
    _, scales, axes = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    shares = scales**2 / max(float(np.sum(scales**2)), 1e-12)
    axes = axes[:number] * np.sign(axes[:number].sum(axis=1, keepdims=True))  # no free sign
    return (vectors - vectors.mean(axis=0)) @ axes.T, shares[:number]


def draw_senses(found: Sequence[Occurrence], vectors: Mapping[str, np.ndarray], path: Path) -> None:
    """Draw the principal components of the word with most uses, before and after the encoder."""
    words = [one.word for one in found]
    word = max(sorted({*words}), key=words.count)
    chosen = [place for place, each in enumerate(words) if each == word]
    senses = [found[place].sense for place in chosen]
    figure = new_figure(9, 4)
    for axes, name in zip(figure.subplots(1, 2), (INPUT, OUTPUT), strict=True):
        points, shares = principal_components(vectors[name][chosen])
        for sense, (color, marker) in zip(sorted({*senses}), MARKS, strict=False):
            of_sense = points[[each == sense for each in senses]]
            axes.plot(*of_sense.T, marker, color=color, mfc="none", label=sense)
        axes.set(
            title=f"{word!r}, {name}",
            xlabel=f"component 1 ({shares[0]:.0%} of the variance)",
            ylabel=f"component 2 ({shares[1]:.0%})",
        )
        axes.legend()
    save(figure, path, FORMATS)

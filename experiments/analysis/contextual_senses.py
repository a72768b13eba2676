"""Senses of ambiguous words in the vectors of every layer, by their nearest neighbours.

A layer adds position, feed-forward layers and attention to a vector. If its vectors distinguish
senses and static ones do not, they contain the context; the comparison does not show which part
added it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.analysis.collect import ENCODER
from experiments.analysis.figures import FORMATS, MARKS, new_figure, save
from experiments.analysis.senses import (
    Occurrence,
    cosine_distances,
    neighbour_mean,
    occurrences,
)
from experiments.data.pairs import SentencePair
from experiments.tasks.task import Task
from experiments.training.step import TrainState

FEWEST = 20  # uses of a word
WINDOW = 5  # neighbours on either side
NEIGHBOURS_FROM = 10_000  # training sentences
AT_ONCE = 64  # sentences of a pass
STATIC, NEIGHBOURS = "input embedding", "mean of neighbours"
INPUT, OUTPUT = "input of layer 1", "encoder output"


def nearest_senses(vectors: np.ndarray, senses: np.ndarray) -> np.ndarray:
    """Return the sense of the nearest other use for each use, by the cosine: `[M]`.

    Equally near uses vote; if their vote is tied, the most frequent sense of them all decides.

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


class SenseUses(NamedTuple):
    """Uses of frequent ambiguous words, and their vectors.

    Attributes:
        uses: those of held-out splits, and after them those of train, which are neighbours alone.
        asked: number of the held-out ones.
        vectors: `[M, D]` of each kind.
    """

    uses: Sequence[Occurrence]
    asked: int
    vectors: Mapping[str, np.ndarray]

    @property
    def held_out(self) -> "SenseUses":
        """The uses of held-out splits alone."""
        vectors = {name: each[: self.asked] for name, each in self.vectors.items()}
        return SenseUses(self.uses[: self.asked], self.asked, vectors)


def sense_vectors(task: Task, state: TrainState) -> SenseUses | None:
    """Return the uses of ambiguous words in all splits, None if no word is frequent.

    A word is frequent in all splits but train together: one of them has too few uses of a word.
    """
    held_out = [
        pair for split in task.known_splits if split != "train" for pair in task.examples(split)
    ]
    asked = frequent(occurrences(held_out))
    if not asked:
        return None
    pairs = [*held_out, *task.examples("train")[:NEIGHBOURS_FROM]]
    words = {one.word for one in asked}
    others = [one for one in occurrences(pairs) if one.word in words]
    uses = asked + [one for one in others if one.sentence >= len(held_out)]
    return SenseUses(uses, len(asked), _vectors(task, state, pairs, uses))


def _vectors(
    task: Task,
    state: TrainState,
    pairs: Sequence[SentencePair],
    uses: Sequence[Occurrence],
) -> dict[str, np.ndarray]:
    """Return the vectors `[M, D]` of the uses of words in some pairs, by kind."""
    sentences = sorted({one.sentence for one in uses})
    examples = {
        each: task.example(state, pairs[each].source, pairs[each].target) for each in sentences
    }
    words = sorted({word for each in examples.values() for word in each.labels[ENCODER][:-1]})
    alone = [task.example(state, word, "") for word in words]
    static = {
        word: attended.hidden_states[ENCODER][0, 0]
        for word, attended in zip(
            words, task.collector(state.parameters, alone, batch_size=AT_ONCE), strict=True
        )
    }
    of_sentence: dict[int, list[int]] = {}
    for number, one in enumerate(uses):
        of_sentence.setdefault(one.sentence, []).append(number)
    found: dict[str, dict[int, np.ndarray]] = {}
    passes = task.collector(state.parameters, [*examples.values()], batch_size=AT_ONCE)
    for sentence, attended in zip(examples, passes, strict=True):
        read = np.stack([static[label] for label in examples[sentence].labels[ENCODER][:-1]])
        inputs, *layers = attended.hidden_states[ENCODER]
        states = {INPUT: inputs} | {f"layer {n}": each for n, each in enumerate(layers, start=1)}
        states[OUTPUT] = attended.features[ENCODER]
        for number in of_sentence[sentence]:
            place = uses[number].place
            vectors = {STATIC: read[place], NEIGHBOURS: neighbour_mean(read, place, WINDOW)}
            for name, vector in (vectors | {n: each[place] for n, each in states.items()}).items():
                found.setdefault(name, {})[number] = vector
    return {
        name: np.stack([each[number] for number in range(len(uses))])
        for name, each in found.items()
    }


def senses_table(found: SenseUses) -> list[dict[str, Any]]:
    """Return a row for each kind of vector: how often the nearest neighbour has the same sense."""
    own = found.held_out
    common, rows, before = _percent(correct(found, _most_frequent)), [], None
    for name, vectors in own.vectors.items():
        is_state = name not in (STATIC, NEIGHBOURS)
        moved = ""
        if is_state and before is not None:
            moved = float(np.mean(cosine_distances(before, vectors)))
        before = vectors if is_state else before
        rows.append(
            {
                "vector": name,
                "accuracy": accuracy(found, name),
                "held-out neighbours alone": accuracy(own, name),
                "most frequent sense": common,
                "moved by": moved,
                "words": len({one.word for one in own.uses}),
                "uses": found.asked,
                "uses in train": len(found.uses) - found.asked,
            }
        )
    return rows


def accuracy(found: SenseUses, name: str) -> float:
    """Return how many of 100 held-out uses have a nearest neighbour of the same sense.

    Args:
        found: the uses.
        name: of the vectors.
    """
    return _percent(nearest(found, name))


def nearest(found: SenseUses, name: str) -> Mapping[str, np.ndarray]:
    """Return for each word which held-out uses have a nearest neighbour of the same sense."""
    vectors = found.vectors[name]
    return correct(found, lambda places, senses: nearest_senses(vectors[places], senses))


def words_table(found: SenseUses) -> list[dict[str, Any]]:
    """Return a row for each word, with the accuracy of each kind of vector."""
    columns = {"most frequent sense": correct(found, _most_frequent)}
    columns |= {name: nearest(found, name) for name in found.vectors}
    train = Counter(one.word for one in found.uses[found.asked :])
    return [
        {"word": word, "uses": len(each), "uses in train": train[word]}
        | {name: 100 * float(np.mean(column[word])) for name, column in columns.items()}
        for word, each in columns["most frequent sense"].items()
    ]


def _most_frequent(places: np.ndarray, senses: np.ndarray) -> np.ndarray:
    names, counts = np.unique(senses, return_counts=True)
    return np.repeat(names[counts.argmax()], len(places))


def correct(
    found: SenseUses, guess: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> dict[str, np.ndarray]:
    """Return which held-out uses of each word have the guessed sense.

    Args:
        found: the uses.
        guess: from the places `[M]` and the senses of all uses of a word to guesses `[M]`.
    """
    words, senses = (
        np.array([getattr(one, field) for one in found.uses]) for field in ("word", "sense")
    )
    right = {}
    for word in np.unique(words).tolist():
        places = np.flatnonzero(words == word)
        is_right = guess(places, senses[places]) == senses[places]
        right[word] = is_right[places < found.asked]
    return right


def _percent(right: Mapping[str, np.ndarray]) -> float:
    return 100 * float(np.mean(np.concatenate([*right.values()])))


def principal_components(vectors: np.ndarray, number: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Return the first coordinates `[M, number]` of vectors and their shares of the variance."""
    _, scales, axes = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    shares = scales**2 / max(float(np.sum(scales**2)), 1e-12)
    axes = axes[:number] * np.sign(axes[:number].sum(axis=1, keepdims=True))  # no free sign
    return (vectors - vectors.mean(axis=0)) @ axes.T, shares[:number]


def draw_senses(found: SenseUses, path: Path) -> None:
    """Draw the principal components of the word with most uses, before and after the encoder."""
    uses, _, vectors = found.held_out
    words = [one.word for one in uses]
    word = max(sorted({*words}), key=words.count)
    chosen = [place for place, each in enumerate(words) if each == word]
    senses = [uses[place].sense for place in chosen]
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
        axes.set_aspect("equal", adjustable="datalim")  # rounding errors are no component
        axes.legend()
    save(figure, path, FORMATS)

"""Word alignments of a split, from the cross-attention of a model and from baselines."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from experiments.analysis.alignment import (
    AlignmentScores,
    Gold,
    Links,
    balanced,
    diagonal_links,
    link_words,
    score,
    uniform_links,
    word_weights,
)
from experiments.analysis.collect import CROSS, DECODER, ENCODER, AttentionMaps, Example
from experiments.analysis.value_norms import affine_value_vectors, of_source, weighted_norms
from experiments.data.pairs import SentencePair
from experiments.data.tokenizers import Tokenizers
from experiments.errors import UsageError

if TYPE_CHECKING:
    from experiments.learner import TrainState
    from experiments.tasks.translation import Translation

VALIDATION, TEST = "validation", "test"
AT_ONCE = 64  # sentences of a pass
WEIGHTS, NORMS = "weights", "value norms"  # measures of what attention takes from a key
BALANCED = "balanced "  # before a measure: scaled by `alignment.balanced`
READINGS = ("predicting", "reading")  # the row that predicts a target token, or that reads it
LINKED = ("target words", "all words")  # that have at least one link, but for those of the end


class Method(NamedTuple):
    """How links are read from cross-attention.

    Attributes:
        layer: from 1; 0 for all layers.
        head: from 1; 0 for all heads.
        measure: `WEIGHTS` or `NORMS`, or one of them after `BALANCED`; of several heads or layers
            the mean of their weights, or the norm of the sum of their vectors.
        reading: one of `READINGS`.
        linked: one of `LINKED`.
    """

    layer: int
    head: int
    measure: str
    reading: str
    linked: str

    def __str__(self) -> str:
        """As in a table."""
        layer = f"layer {self.layer}" if self.layer else "all layers"
        head = f"head {self.head}" if self.head else "all heads"
        how = f"{self.reading} row; links of {self.linked}"
        return f"{layer}, {head}: {self.measure}; {how}"


Alignments = Mapping[Method, Sequence[Links]]


def alignments(
    maps: AttentionMaps,
    source: Sequence[int],
    target: Sequence[int],
    values: Sequence[np.ndarray] = (),
) -> dict[Method, Links]:
    """Return the links of one sentence by `Method`.

    Args:
        maps: of cross-attention.
        source: as in `word_weights`.
        target: the same.
        values: `[S, N, D]` of each layer, as of `value_vectors`; weights alone are read if a
            layer has none.
    """
    weights = maps.weights
    each = {
        (layer, head + 1, WEIGHTS): weights[place, head]
        for place, layer in enumerate(maps.layers)
        for head in range(weights.shape[1])
    }
    if weights.shape[1] > 1:
        means = zip(maps.layers, weights.mean(axis=1), strict=True)
        each |= {(layer, 0, WEIGHTS): mean for layer, mean in means}
    if len(maps.layers) > 1:
        each[0, 0, WEIGHTS] = weights.mean(axis=(0, 1))
    if len(values) == len(maps.layers):
        layers = zip(maps.layers, weights, values, strict=True)
        each |= {(layer, 0, NORMS): weighted_norms(*of_layer) for layer, *of_layer in layers}
        if len(values) > 1:
            every = np.concatenate(weights), np.concatenate(values, axis=1)
            each[0, 0, NORMS] = weighted_norms(*every)
    stacked = np.stack([*each.values()])
    found = {}
    for shift, reading in enumerate(READINGS):
        every = word_weights(stacked, source, target, shift=shift)
        for prefix, words in (("", every), (BALANCED, balanced(every))):
            for (layer, head, measure), own in zip(each, words, strict=True):
                for linked in LINKED:
                    links = link_words(own, both=linked == LINKED[1])
                    found[Method(layer, head, prefix + measure, reading, linked)] = links
    return found


def align_split(
    task: "Translation", parameters: nnx.State, examples: Sequence[Example]
) -> dict[Method, list[Links]]:
    """Return the links of every sentence by every method."""
    affine = jax.device_get(task.learner.apply(affine_value_vectors)(parameters))
    found: dict[Method, list[Links]] = {}
    for example, attended in zip(
        examples, task.collector(parameters, examples, batch_size=AT_ONCE), strict=True
    ):
        words = example.words[ENCODER], example.words[DECODER]
        features = attended.features[ENCODER]
        values = [of_source(each, features) for each in affine.values()]
        for method, links in alignments(attended.maps[CROSS], *words, values).items():
            found.setdefault(method, []).append(links)
    return found


def gold_of(pairs: Sequence[SentencePair]) -> list[Gold]:
    """Return the links of generated pairs, all of them sure."""
    links = [frozenset(pair.alignment) for pair in pairs]
    return [Gold(each, each) for each in links]


class Report(NamedTuple):
    """Alignment of a test split.

    Attributes:
        chosen: the method with the lowest error on validation.
        rows: of a table: the best head and the best heads together on validation, for each measure
            and reading, and baselines.
        every: rows of all methods.
        links: of the chosen method on test.
    """

    chosen: Method
    rows: list[dict[str, Any]]
    every: list[dict[str, Any]]
    links: Sequence[Links]


def report(
    validation: Alignments,
    test: Alignments,
    gold: Mapping[str, Sequence[Gold]],
    baselines: Mapping[str, Sequence[Links]],
) -> Report:
    """Choose on validation, and score on test.

    Args:
        validation: links of the validation split by method.
        test: those of the test split.
        gold: of both splits.
        baselines: links of the test split by name.
    """
    errors = {name: score(links, gold[VALIDATION]).aer for name, links in validation.items()}
    scores = {name: score(links, gold[TEST]) for name, links in test.items()}
    ranked = sorted(errors, key=lambda method: errors[method])
    rows = [_row(str(method), errors[method], scores[method]) for method in ranked]
    best = {}
    for method, row in zip(ranked, rows, strict=True):
        heads = "best head" if method.head else "best heads together"
        name = f"{heads}: {method.measure}; {method.reading} row"
        best.setdefault(name, row | {"alignment": name, "method": str(method)})
    others = [_row(name, None, score(links, gold[TEST])) for name, links in baselines.items()]
    best = [*best.values(), *(row | {"method": ""} for row in others)]
    return Report(ranked[0], best, rows, test[ranked[0]])


def _row(name: str, validation: float | None, test: AlignmentScores) -> dict[str, Any]:
    values = {name: 100 * value for name, value in test._asdict().items()}
    return {
        "alignment": name,
        "validation AER": "" if validation is None else 100 * validation,
        "AER": values["aer"],
        "95 % from": values["low"],
        "to": values["high"],
        "precision": values["precision"],
        "recall": values["recall"],
    }


def words_of(tokenizers: Tokenizers, pair: SentencePair) -> tuple[list[str], list[str]]:
    """Return the words of a source and its translation, by which links count."""
    return tokenizers.source.words(pair.source), tokenizers.target.words(pair.target)


def baselines(task: "Translation", test: Sequence[SentencePair]) -> dict[str, Sequence[Links]]:
    """Return the links of pairs by methods without a neural network."""
    asked = [words_of(task.tokenizers, pair) for pair in test]
    lengths = [(len(source), len(target)) for source, target in asked]
    return {
        "diagonal": diagonal_links(lengths),
        "random source word": uniform_links(lengths),
    }


def align_task(
    task: "Translation",
    state: "TrainState",
    split: str,
) -> Report:
    """Align a split with gold links, by methods chosen on the validation split.

    Raises:
        UsageError: a split without links.
    """
    found, gold = {}, {}
    for name, wanted in ((VALIDATION, VALIDATION), (TEST, split)):
        found[name], gold[name] = align_with_links(task, state, wanted)
    return report(found[VALIDATION], found[TEST], gold, baselines(task, [*task.examples(split)]))


def align_with_links(
    task: "Translation", state: "TrainState", split: str
) -> tuple[dict[Method, list[Links]], list[Gold]]:
    """Return the links of a split by every method, and its gold links.

    Raises:
        UsageError: a split without links.
    """
    pairs = [*task.examples(split)]
    if not has_links(pairs):
        raise UsageError(f"the {split} split has no gold alignments")
    examples = [task.example(state, pair.source, pair.target) for pair in pairs]
    return align_split(task, state.parameters, examples), gold_of(pairs)


def has_links(pairs: Iterable[SentencePair]) -> bool:
    """Return whether any pair has gold links."""
    return any(pair.links for pair in pairs)

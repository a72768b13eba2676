"""Word alignments from cross-attention, and their error against gold links."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.analysis.collect import CROSS, DECODER, ENCODER, AttentionMaps, Example
from experiments.errors import UsageError
from experiments.files import read_lines

if TYPE_CHECKING:
    from experiments.learner import TrainState
    from experiments.tasks.task import Task

Links = frozenset[tuple[int, int]]  # (source word, target word), from 0
Alignments = Mapping[str, Sequence[Links]]  # of each sentence, by the method: see `alignments`
LINK = re.compile(r"(\d+)([-p?])(\d+)")
BATCH_SIZE = 64  # sentences of a pass


class Gold(NamedTuple):
    """Links of a sentence drawn by people; sure links are possible ones too."""

    sure: Links
    possible: Links


class AlignmentScores(NamedTuple):
    """Scores of links A by sure links S and possible links P (Och and Ney 2003, section 5)."""

    aer: float  # alignment error rate, 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)
    precision: float  # |A ∩ P| / |A|
    recall: float  # |A ∩ S| / |S|


def read_links(
    path: Path, *, first: int = 0, lengths: Sequence[tuple[int, int]] = ()
) -> list[Gold]:
    """Read one line of links for each sentence, such as "0-0 1-2 2p3" (format of Pharaoh).

    A link with "-" is sure, with "p" or "?" it is possible. The first number is that of a source
    word. Words are counted from `first`; `lengths` are the numbers of source and target words of
    each sentence, if they are known.

    Raises:
        UsageError: a file that cannot be read, a link of another form, a number out of range, or
            another number of lines.
    """
    try:
        lines = read_lines(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    lengths = lengths or [(np.inf, np.inf)] * len(lines)
    if len(lines) != len(lengths):
        raise UsageError(f"{path} has {len(lines)} lines, and there are {len(lengths)} sentences")
    gold = []
    for number, (line, limits) in enumerate(zip(lines, lengths, strict=True), start=1):
        sure, possible = set(), set()
        for text in line.split():
            match = LINK.fullmatch(text)
            if match is None:
                raise UsageError(f"{path}, line {number}: a link is 0-1, 0p1 or 0?1, got {text!r}")
            link = int(match[1]) - first, int(match[3]) - first
            if not all(0 <= word < limit for word, limit in zip(link, limits, strict=True)):
                between = f"between words of the sentence, counted from {first}"
                raise UsageError(f"{path}, line {number}: the link {text} is not {between}")
            possible.add(link)
            if match[2] == "-":
                sure.add(link)
        gold.append(Gold(frozenset(sure), frozenset(possible)))
    return gold


def as_pharaoh(links: Links) -> str:
    """Return links in the format of Pharaoh, "0-0 1-2", counted from 0."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def score(predicted: Sequence[Links], gold: Sequence[Gold]) -> AlignmentScores:
    """Score the alignments of a corpus; counts are summed over its sentences."""
    in_sure = in_possible = num_links = num_sure = 0
    for links, (sure, possible) in zip(predicted, gold, strict=True):
        in_sure += len(links & sure)
        in_possible += len(links & possible)
        num_links += len(links)
        num_sure += len(sure)
    both = num_links + num_sure
    return AlignmentScores(
        aer=1 - (in_sure + in_possible) / both if both else 0.0,
        precision=in_possible / num_links if num_links else 1.0,
        recall=in_sure / num_sure if num_sure else 1.0,
    )


def word_weights(weights: np.ndarray, source: Sequence[int], target: Sequence[int]) -> np.ndarray:
    """Return weights between words, `[..., target words, source words + 1]`; the last is the end.

    The weights of the tokens of a source word are summed, those of the tokens of a target word
    averaged.

    Args:
        weights: of cross-attention `[..., 1 + T, 1 + S]`; row t predicts target token t. The last
            row predicts the end, and the last key is that of the source.
        source: number of the word of each of S source tokens, from 0.
        target: the same of T target tokens.
    """
    num_source, num_target = (max(words, default=-1) + 1 for words in (source, target))
    columns = np.zeros((len(source) + 1, num_source + 1), np.float32)
    columns[np.arange(len(source) + 1), [*source, num_source]] = 1
    rows = np.zeros((num_target, len(target)), np.float32)
    rows[[*target], np.arange(len(target))] = 1
    rows /= np.maximum(rows.sum(axis=1, keepdims=True), 1)
    return rows @ weights[..., : len(target), :] @ columns


def link_words(weights: np.ndarray) -> Links:
    """Link words by the largest of the weights of `word_weights`.

    A target word whose largest weight is on the end of the source has no link. A source word
    without a link is linked with the target word that gives it the largest weight, if above 0.
    """
    end = weights.shape[1] - 1
    best = weights.argmax(axis=1).tolist()
    links = {(source, target) for target, source in enumerate(best) if source != end}
    if len(weights):
        best = weights.argmax(axis=0).tolist()
        unlinked = {*range(end)} - {source for source, _ in links}
        links |= {(source, best[source]) for source in unlinked if weights[best[source], source]}
    return frozenset(links)


def diagonal_links(lengths: tuple[int, int]) -> Links:
    """Link each target word with the source word at the same share of the sentence."""
    source, target = lengths
    return frozenset(
        (min(source - 1, (2 * word + 1) * source // (2 * target)), word)
        for word in range(target if source else 0)
    )


def alignments(
    maps: AttentionMaps, source: Sequence[int], target: Sequence[int]
) -> dict[str, Links]:
    """Return the links of one sentence by each head, and by means; arguments as in `word_weights`.

    Methods have names such as "layer 1, head 2", "layer 1, all heads" and "all layers, all heads".
    """
    weights = {
        f"layer {layer}, {f'head {head}' if head else 'all heads'}": rows
        for layer, heads in zip(maps.layers, maps.weights, strict=True)
        for head, rows in enumerate([heads.mean(axis=0), *heads])
    }
    weights["all layers, all heads"] = maps.weights.mean(axis=(0, 1))
    words = word_weights(np.stack([*weights.values()]), source, target)
    return dict(zip(weights, map(link_words, words), strict=True))


def align(task: "Task", state: "TrainState", examples: Sequence[Example]) -> dict[str, list[Links]]:
    """Return the links of every example of a translation by every method."""
    links: dict[str, list[Links]] = {}
    passes = task.collector(state.parameters, examples, batch_size=BATCH_SIZE)
    for example, attended in zip(examples, passes, strict=True):
        words = example.words[ENCODER], example.words[DECODER]
        for method, of_sentence in alignments(attended.maps[CROSS], *words).items():
            links.setdefault(method, []).append(of_sentence)
    return links


def errors(links: Alignments, gold: Sequence[Gold]) -> dict[str, float]:
    """Return the error rate of each method in %, the lowest first."""
    rates = {method: 100 * score(predicted, gold).aer for method, predicted in links.items()}
    return dict(sorted(rates.items(), key=lambda item: item[1]))


def alignment_table(
    validation: Mapping[str, float],
    test: Alignments,
    gold: Sequence[Gold],
    lengths: Sequence[tuple[int, int]],
) -> list[dict[str, Any]]:
    """Return the scores of the best head, of the best mean of heads, and of the diagonal, in %.

    The best ones are those with the lowest error in `validation`, which `errors` returns. `lengths`
    are the numbers of source and target words of the sentences of `test`.
    """
    methods = {
        "best head": next(method for method in validation if "all heads" not in method),
        "best heads together": next(method for method in validation if "all heads" in method),
        "diagonal": "",
    }
    rows = []
    for name, method in methods.items():
        links = test[method] if method else [*map(diagonal_links, lengths)]
        row = {"alignment": name, "method": method, "validation AER": validation.get(method, "")}
        aer, precision, recall = (100 * value for value in score(links, gold))
        rows.append(row | {"AER": aer, "precision": precision, "recall": recall})
    return rows

"""Word alignments: read them from attention weights, from files, and score them against gold."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.errors import UsageError
from experiments.files import read_lines

Links = frozenset[tuple[int, int]]  # (source word, target word), from 0
LINK = re.compile(r"(\d+)([-p?])(\d+)")
NUMBERED = re.compile(r"0*([1-9]\d*) (\d+) (\d+)(?: ([SP]))?(?: [\d.]+)?\s*")  # with a confidence
BALANCING_ROUNDS = 2  # error rates on the validation split do not fall with more
RESAMPLED = 1_000  # times that the sentences are drawn anew for an interval


class Gold(NamedTuple):
    """Links of a sentence that people have drawn; sure links are possible ones too."""

    sure: Links
    possible: Links


class AlignmentScores(NamedTuple):
    """Scores of a corpus (Och and Ney 2003, section 5).

    Attributes:
        aer: alignment error rate, 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|).
        precision: |A ∩ P| / |A|.
        recall: |A ∩ S| / |S|.
        low: lower end of a 95 % interval of the error rate, by resampling sentences.
        high: its upper end.
    """

    aer: float
    precision: float
    recall: float
    low: float
    high: float


def read_links(
    path: Path, *, first: int = 0, lengths: Sequence[tuple[int, int]] = ()
) -> list[Gold]:
    """Read one line of links for each sentence, such as "0-0 1-2 2p3", or one line for each link.

    A link with "-" is sure, with "p" or "?" it is possible. The first number is that of a source
    word. Lines for a link, such as "0001 1 2 P", begin with the number of the sentence, from 1
    (Mihalcea and Pedersen 2003).

    Args:
        path: a text file.
        first: number of the first word, 0 or 1.
        lengths: number of source and target words of each sentence, if they are known.

    Raises:
        UsageError: a file that cannot be read, a link of another form, a number out of range, or
            another number of lines.
    """
    try:
        lines = _by_sentence(read_lines(path), len(lengths))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if lengths and len(lines) != len(lengths):
        raise UsageError(f"{path} has {len(lines)} lines, and there are {len(lengths)} sentences")
    found = []
    for number, line in enumerate(lines, start=1):
        sure, possible = set(), set()
        for text in line.split():
            link = LINK.fullmatch(text)
            if link is None:
                raise UsageError(f"{path}, line {number}: a link is 0-1, 0p1 or 0?1, got {text!r}")
            places = int(link[1]) - first, int(link[3]) - first
            limits = lengths[number - 1] if lengths else (np.inf, np.inf)
            if not all(0 <= at < limit for at, limit in zip(places, limits, strict=True)):
                words = f" of a sentence with {limits[0]} and {limits[1]} words" if lengths else ""
                raise UsageError(
                    f"{path}, line {number}: the link {text}{words} is out of range, counted from "
                    f"{first}"
                )
            possible.add(places)
            if link[2] == "-":
                sure.add(places)
        found.append(Gold(frozenset(sure), frozenset(possible)))
    return found


def _by_sentence(lines: list[str], sentences: int) -> list[str]:
    """Return one line of links for each sentence, also of lines for one link each."""
    found = [NUMBERED.fullmatch(line) for line in lines]
    if not found or not all(found):
        return lines
    links = [[] for _ in range(max(sentences, *(int(link[1]) for link in found)))]
    for link in found:
        links[int(link[1]) - 1].append(f"{link[2]}{'p' if link[4] == 'P' else '-'}{link[3]}")
    return [*map(" ".join, links)]


def as_pharaoh(links: Links) -> str:
    """Return links in the format of Pharaoh, "0-0 1-2", counted from 0."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def score(predicted: Sequence[Links], gold: Sequence[Gold]) -> AlignmentScores:
    """Score the alignments of a corpus; counts are summed over its sentences.

    Raises:
        UsageError: another number of sentences.
    """
    if len(predicted) != len(gold):
        raise UsageError(f"{len(predicted)} alignments cannot be scored against {len(gold)}")
    counts = np.array(
        [
            (len(links & sure), len(links & possible), len(links), len(sure))
            for links, (sure, possible) in zip(predicted, gold, strict=True)
        ],
        np.float64,
    ).reshape(-1, 4)
    total = counts.sum(axis=0)
    _, among_possible, of_links, of_sure = total
    low, high = np.quantile(_error(_resampled(len(counts)) @ counts), (0.025, 0.975))
    return AlignmentScores(
        aer=float(_error(total)),
        precision=float(among_possible / of_links) if of_links else 1.0,
        recall=float(total[0] / of_sure) if of_sure else 1.0,
        low=float(low),
        high=float(high),
    )


@cache
def _resampled(number: int) -> np.ndarray:
    """Return how often each sentence is drawn, `[RESAMPLED, number]`."""
    shares = np.full(number, 1 / max(number, 1))
    return np.random.default_rng(0).multinomial(number, shares, RESAMPLED).astype(np.float64)


def _error(counts: np.ndarray) -> np.ndarray:
    """Return the error rate of counts `[..., 4]`; 0 where there is no link at all."""
    among_sure, among_possible, of_links, of_sure = np.moveaxis(counts, -1, 0)
    both = of_links + of_sure
    return 1 - (among_sure + among_possible + (both == 0)) / np.maximum(both, 1)


def word_weights(
    weights: np.ndarray, source: Sequence[int], target: Sequence[int], *, shift: int = 0
) -> np.ndarray:
    """Return weights between words, `[..., target words, source words + 1]`; the last is the end.

    The weights of the tokens of a source word are summed, those of the tokens of a target word
    averaged.

    Args:
        weights: of cross-attention `[..., 1 + T, 1 + S]`; row t predicts target token t, and row
            t + 1 reads it. The last row predicts the end, and the last key is that of the source.
        source: number of the word of each of S source tokens, from 0.
        target: the same of T target tokens.
        shift: 0 for the row that predicts a token, 1 for the row that reads it.
    """
    num_source, num_target = (max(words, default=-1) + 1 for words in (source, target))
    columns = np.zeros((len(source) + 1, num_source + 1), np.float32)
    columns[np.arange(len(source) + 1), [*source, num_source]] = 1
    rows = np.zeros((num_target, len(target)), np.float32)
    rows[[*target], np.arange(len(target))] = 1
    rows /= np.maximum(rows.sum(axis=1, keepdims=True), 1)
    return rows @ weights[..., shift : shift + len(target), :] @ columns


def balanced(weights: np.ndarray) -> np.ndarray:
    """Scale source and target words in turn to a sum of 1, except for the end (Sinkhorn 1964).

    Of several source words with much weight, a target word is then linked with that to which fewer
    other words attend. A source word with little weight in all rows may win over all of them.

    Args:
        weights: `[..., target words, source words + 1]`, as of `word_weights`.
    """
    for _ in range(BALANCING_ROUNDS):
        of_source = weights[..., :-1].sum(axis=-2, keepdims=True)
        scaled = weights[..., :-1] / np.where(of_source, of_source, 1)
        weights = np.concatenate([scaled, weights[..., -1:]], axis=-1)
        of_target = weights.sum(axis=-1, keepdims=True)
        weights = weights / np.where(of_target, of_target, 1)
    return weights


def link_words(weights: np.ndarray, *, both: bool = False) -> Links:
    """Link each target word with the source word that has the largest weight.

    A target word whose largest weight is on the end of the source has no link.

    Args:
        weights: `[target words, source words + 1]`, as of `word_weights`.
        both: whether each source word without a link is also linked with the target word that
            gives it the largest weight, if that is above 0: a word without a token has none.
    """
    end = weights.shape[1] - 1
    links = {(at, word) for word, at in enumerate(weights.argmax(axis=1).tolist()) if at != end}
    if both and len(weights):
        best = weights.argmax(axis=0).tolist()
        others = {*range(end)} - {source for source, _ in links}
        links |= {(at, best[at]) for at in others if weights[best[at], at] > 0}
    return frozenset(links)


def diagonal_links(lengths: Iterable[tuple[int, int]]) -> list[Links]:
    """Link each target word with the source word at the same share of the sentence."""
    return [
        frozenset(
            (min(source - 1, (2 * at + 1) * source // (2 * target)), at) for at in range(target)
        )
        if source
        else frozenset()
        for source, target in lengths
    ]


def uniform_links(lengths: Iterable[tuple[int, int]]) -> list[Links]:
    """Link each target word with a random source word."""
    random = np.random.default_rng(0)
    return [
        frozenset((int(random.integers(source)), at) for at in range(target) if source)
        for source, target in lengths
    ]

"""Word alignment by IBM Model 1 (Brown et al. 1993), the baseline without a neural network."""

from collections.abc import Sequence

import numpy as np

from experiments.analysis.alignment import Links

Words = Sequence[str]
Pair = tuple[Words, Words]  # source and target words
ITERATIONS = 5  # of expectation maximisation
NULL = ""  # the source word of target words that translate none


def align(train: Sequence[Pair], test: Sequence[Pair]) -> list[Links]:
    """Learn t(target word | source word) from pairs, and link the words of others.

    Each target word is linked with its most probable source word, and not linked if that is the
    empty word or if no source word is known to translate to it.
    """
    table = translation_table(train)
    found = []
    for source, target in test:
        links = set()
        for place, word in enumerate(target):
            scores = [table.get((each, word), 0.0) for each in (NULL, *source)]
            best = int(np.argmax(scores))
            if best:
                links.add((best - 1, place))
        found.append(frozenset(links))
    return found


def translation_table(pairs: Sequence[Pair], iterations: int = ITERATIONS) -> dict[Pair, float]:
    """Return t(target word | source word) of all words that occur together."""
    numbers: dict[Pair, int] = {}  # of each pair of words
    cells, groups, group = [], [], 0
    for source, target in pairs:
        for word in target:
            for each in (NULL, *source):
                cells.append(numbers.setdefault((each, word), len(numbers)))
                groups.append(group)
            group += 1
    sources: dict[str, int] = {}
    source_of = np.array([sources.setdefault(word, len(sources)) for word, _ in numbers], int)
    cells, groups = np.array(cells, int), np.array(groups, int)  # one for each candidate link
    probability = np.ones(len(numbers))
    for _ in range(iterations):
        weight = probability[cells]
        expected = weight / np.bincount(groups, weight)[groups]
        count = np.bincount(cells, expected, len(numbers))
        probability = count / np.bincount(source_of, count)[source_of]
    return dict(zip(numbers, probability.tolist(), strict=True))

"""Scores of the test sentences that show a phenomenon of the toy language."""

from collections.abc import Callable, Sequence

from experiments.analysis.senses import occurrences
from experiments.data.pairs import SentencePair
from experiments.data.toy_language.lexicon import ADJECTIVE
from experiments.data.words import tokenize


def _agrees(pair: SentencePair) -> bool:
    """Return whether an adjective is not in the masculine singular, its dictionary form."""
    english, french = tokenize(pair.source), tokenize(pair.target)
    return any(
        english[source] in ADJECTIVE and french[target] != ADJECTIVE[english[source]].masculine
        for source, target in pair.alignment
    )


def _reorders(pair: SentencePair) -> bool:
    """Return whether the translations of words are in another order."""
    targets = [target for _, target in sorted(pair.alignment)]
    return targets != sorted(targets)


def _chooses(pair: SentencePair) -> bool:
    """Return whether the sentence contains a word with several senses."""
    return bool(occurrences([pair]))


PHENOMENA: dict[str, Callable[[SentencePair], bool]] = {
    "agreement": _agrees,
    "order": _reorders,
    "polysemy": _chooses,
}


def by_phenomenon(
    pairs: Sequence[SentencePair], translations: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the exact match of the sentences that show each phenomenon.

    Args:
        pairs: sentences with their alignments.
        translations: one for each.

    Returns:
        For each phenomenon that occurs: sentences, and exact_match among them.
    """
    scores = {}
    for name, shows in PHENOMENA.items():
        right = [
            translation == pair.target
            for pair, translation in zip(pairs, translations, strict=True)
            if shows(pair)
        ]
        if right:
            scores[name] = {"sentences": len(right), "exact_match": sum(right) / len(right)}
    return scores

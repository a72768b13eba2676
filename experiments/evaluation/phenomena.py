"""Scores of the test sentences that show a phenomenon of the toy language."""

from collections.abc import Sequence

from experiments.analysis.senses import occurrences
from experiments.data.tokenizers import SentencePair, tokenize
from experiments.data.toy_language.lexicon import ADJECTIVE


def phenomena(pair: SentencePair) -> dict[str, bool]:
    """Return whether a sentence shows each phenomenon.

    agreement: an adjective is not in the masculine singular, its dictionary form; order: the
    translations of words are in another order; polysemy: a word has several senses.
    """
    english, french = tokenize(pair.source), tokenize(pair.target)
    links = sorted(pair.alignment)
    targets = [target for _, target in links]
    adjectives = [(source, target) for source, target in links if english[source] in ADJECTIVE]
    return {
        "agreement": any(ADJECTIVE[english[i]].masculine != french[j] for i, j in adjectives),
        "order": targets != sorted(targets),
        "polysemy": bool(occurrences([pair])),
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
    right: dict[str, list[bool]] = {"agreement": [], "order": [], "polysemy": []}
    for pair, translation in zip(pairs, translations, strict=True):
        for name, is_shown in phenomena(pair).items():
            if is_shown:
                right[name].append(translation == pair.target)
    return {
        name: {"sentences": len(hits), "exact_match": sum(hits) / len(hits)}
        for name, hits in right.items()
        if hits
    }

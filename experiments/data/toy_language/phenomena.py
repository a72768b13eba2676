"""Phenomena that sentences of the toy language show, and words with several senses in them."""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from experiments.data.tokenizers import SentencePair, tokenize
from experiments.data.toy_language import lexicon


class Occurrence(NamedTuple):
    """An occurrence of a word with several senses."""

    sentence: int  # number of its sentence
    place: int  # index of the word among the tokens of the sentence
    word: str  # in the singular
    sense: str  # its French translation, in the singular


@functools.cache
def _sense_of() -> dict[tuple[str, str], tuple[str, str]]:
    """Map words in both languages, singular and plural, to the singular."""
    singular = {
        (noun.english, noun.french): (noun.english, noun.french) for noun in lexicon.senses()
    }
    return singular | {
        (lexicon.english_plural(english), lexicon.french_plural(french)): (english, french)
        for english, french in singular
    }


def occurrences(pairs: Iterable[SentencePair]) -> list[Occurrence]:
    """List the English words with several senses; the aligned French word determines the sense."""
    listed = []
    for number, pair in enumerate(pairs):
        english, french = tokenize(pair.source), tokenize(pair.target)
        for source, target in pair.alignment:
            if sense := _sense_of().get((english[source], french[target])):
                listed.append(Occurrence(number, source, *sense))
    return listed


def phenomena(pair: SentencePair) -> dict[str, bool]:
    """Return whether a sentence shows each phenomenon.

    agreement: an adjective is not in the masculine singular, its dictionary form; order: the
    translations of words are in another order; polysemy: a word has several senses.
    """
    english, french = tokenize(pair.source), tokenize(pair.target)
    links = sorted(pair.alignment)
    targets = [target for _, target in links]
    adjectives = [
        (lexicon.adjectives()[english[source]], french[target])
        for source, target in links
        if english[source] in lexicon.adjectives()
    ]
    return {
        "agreement": any(adjective.masculine != form for adjective, form in adjectives),
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
    hits: dict[str, list[bool]] = {"agreement": [], "order": [], "polysemy": []}
    for pair, translation in zip(pairs, translations, strict=True):
        for name, is_shown in phenomena(pair).items():
            if is_shown:
                hits[name].append(translation == pair.target)
    return {
        name: {"sentences": len(right), "exact_match": sum(right) / len(right)}
        for name, right in hits.items()
        if right
    }

"""Phenomena that sentences of the toy language show, and words with several senses in them."""

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


# The senses of words in both languages, in the singular, by their singular and their plural forms.
_SENSES = {noun[:2]: noun[:2] for noun in lexicon.SENSES}
for _english, _french in [*_SENSES]:
    _plural = lexicon.english_plural(_english), lexicon.french_plural(_french)
    _SENSES[_plural] = _english, _french


def occurrences(pairs: Iterable[SentencePair]) -> list[Occurrence]:
    """List the English words with several senses; the aligned French word determines the sense."""
    listed = []
    for number, pair in enumerate(pairs):
        english, french = tokenize(pair.source), tokenize(pair.target)
        for source, target in pair.alignment:
            if sense := _SENSES.get((english[source], french[target])):
                listed.append(Occurrence(number, source, *sense))
    return listed


def phenomena(pair: SentencePair) -> set[str]:
    """Return the phenomena that a sentence shows.

    agreement: an adjective is not in the masculine singular, its dictionary form; order: the
    translations of words are in another order; polysemy: a word has several senses.
    """
    english, french = tokenize(pair.source), tokenize(pair.target)
    shown, last = set(), 0
    for source, target in sorted(pair.alignment):
        adjective = lexicon.ADJECTIVES.get(english[source])
        if adjective and adjective.masculine != french[target]:
            shown.add("agreement")
        if target < last:
            shown.add("order")
        last = target
    return shown | ({"polysemy"} if occurrences([pair]) else set())


def by_phenomenon(
    pairs: Sequence[SentencePair], translations: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the number and the exact match of the sentences that show each phenomenon.

    `translations` has one for each of the pairs; phenomena that do not occur are left out.
    """
    hits: dict[str, list[bool]] = {"agreement": [], "order": [], "polysemy": []}
    for pair, translation in zip(pairs, translations, strict=True):
        for name in phenomena(pair):
            hits[name].append(translation == pair.target)
    return {
        name: {"sentences": len(right), "exact_match": sum(right) / len(right)}
        for name, right in hits.items()
        if right
    }

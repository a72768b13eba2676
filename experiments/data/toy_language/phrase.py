"""Phrases in both languages; every French word refers to the English words it translates.

English words are compared by identity, so phrases are joined by concatenating lists, in the order
of each language. Positions, elision and contraction are computed at the end.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from experiments.data.toy_language.morphology import starts_with_vowel
from experiments.data.words import tokenize

PHENOMENA = (
    "agreement",  # an adjective or a participle agrees in gender and number with a noun
    "clitic",  # an object pronoun precedes the French verb
    "conjunction",  # two clauses
    "contraction",  # de + le = du, à + les = aux
    "elision",  # l'Afrique, and un bel oiseau, mon amie
    "negation",  # ne ... pas, jamais, plus around the verb
    "partitive",  # du pain, pas de pain
    "polysemy",  # the sense of a word depends on another word
    "possessive",  # his and her: son or sa, by the gender of the thing possessed
    "pronoun",  # it and they: il or elle, by the gender of the antecedent
    "relative_clause",  # the girl who lives near the river
    "reordering",  # the word order differs
)

# Word → its form before a vowel.
_ELIDED = {
    "le": "l'", "la": "l'", "de": "d'", "ne": "n'", "je": "j'", "me": "m'", "que": "qu'",
    "ma": "mon", "ta": "ton", "sa": "son", "ce": "cet",
}  # fmt: skip
_CONTRACTED = {
    ("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux",
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A sentence, its translation, their word alignment, and names of `PHENOMENA` in them."""

    en: str
    fr: str
    alignment: tuple[tuple[int, int], ...]
    phenomena: tuple[str, ...]

    @cached_property
    def forms(self) -> tuple[str, ...]:
        """Word forms of both sides, with a prefix for the language."""
        english, french = self.en.split(), tokenize(self.fr)
        return (*("en " + word for word in english), *("fr " + word for word in french))


@dataclass(eq=False, slots=True)
class English:
    """One English word at one position of a sentence."""

    text: str


class French(NamedTuple):
    """One French word, the English words it translates, and its form before a vowel."""

    text: str
    sources: tuple[English, ...] = ()
    before_vowel: str | None = None


@dataclass
class Phrase:
    """The same phrase in both languages, each in its own order."""

    english: list[English] = field(default_factory=list)
    french: list[French] = field(default_factory=list)

    def __add__(self, other: "Phrase") -> "Phrase":
        """Concatenate two phrases, in both languages."""
        return Phrase(self.english + other.english, self.french + other.french)


def english(text: str) -> list[English]:
    """Return the English words of a text."""
    return [English(word) for word in text.split()]


def french(text: str, sources: Iterable[English] = ()) -> list[French]:
    """Return French words that all translate the same English words."""
    sources = tuple(sources)
    return [French(word, sources, _ELIDED.get(word)) for word in text.split()]


def phrase(english_text: str, french_text: str) -> Phrase:
    """Return a phrase, aligned word by word if both sides have equally many words."""
    words = english(english_text)
    texts = french_text.split()
    if len(words) == len(texts):
        sources = zip(texts, words, strict=True)
        return Phrase(words, [word for text, source in sources for word in french(text, [source])])
    return Phrase(words, french(french_text, words))


def _contract(words: list[French]) -> list[French]:
    out: list[French] = []
    for i, word in enumerate(words):
        contracted = _CONTRACTED.get((out[-1].text, word.text)) if out else None
        elides = word.before_vowel and i + 1 < len(words) and starts_with_vowel(words[i + 1].text)
        if contracted and not elides:
            out[-1] = French(contracted, out[-1].sources + word.sources)
        else:
            out.append(word)
    return out


def _elide(words: list[French]) -> list[French]:
    followers = [starts_with_vowel(word.text) for word in words[1:]] + [False]
    return [
        word._replace(text=word.before_vowel) if word.before_vowel and vowel else word
        for word, vowel in zip(words, followers, strict=True)
    ]


def finish(sentence: Phrase, phenomena: Iterable[str]) -> Pair:
    """Apply contraction and elision, and compute the alignment."""
    contracted = _contract(sentence.french)
    spelt = _elide(contracted)
    tags = set(phenomena)
    if len(contracted) < len(sentence.french):
        tags.add("contraction")
    if spelt != contracted:
        tags.add("elision")
    place = {id(word): i for i, word in enumerate(sentence.english)}
    links = sorted({(place[id(s)], j) for j, word in enumerate(spelt) for s in word.sources})
    # Links are sorted by English word, so a decreasing French index is a crossing.
    if any(links[i + 1][1] < links[i][1] for i in range(len(links) - 1)
           if links[i][0] < links[i + 1][0]):  # fmt: skip
        tags.add("reordering")
    text = " ".join(word.text for word in spelt).replace("' ", "'")
    return Pair(" ".join(w.text for w in sentence.english), text, tuple(links), tuple(sorted(tags)))

"""Lexicon: the words of lexicon.tsv, and the forms that rules derive from them."""

import functools
from pathlib import Path
from typing import NamedTuple

# Grammatical persons, in the order of the French conjugation tables: I, he or she, we, you, they.
PERSONS = ("je", "il", "nous", "vous", "ils")


class Noun(NamedTuple):
    """A noun, or one sense of a polysemous noun, with its cues."""

    english: str
    french: str
    gender: str
    kind: str
    owners: tuple[str, ...] = ()
    wholes: tuple[str, ...] = ()
    adjectives: tuple[str, ...] = ()

    @property
    def cues(self) -> set[str]:
        """Words that occur with this sense, and with no other sense of the word."""
        return {*self.owners, *self.wholes, *self.adjectives}


class Adjective(NamedTuple):
    """An adjective; `order` is its rank among English adjectives."""

    english: str
    masculine: str
    feminine: str
    order: str
    kinds: frozenset[str]


class Verb(NamedTuple):
    """A verb; `past` is the name of the French tense, `complement` the kind of complement."""

    english: str
    particle: str
    english_past: str
    french: str
    past: str
    subjects: frozenset[str]
    complement: str
    objects: frozenset[str]


@functools.cache
def table(name: str) -> list[tuple[str, ...]]:
    """Return the rows of a table of lexicon.tsv, without its name."""
    text = Path(__file__).with_name("lexicon.tsv").read_text("utf-8")
    rows = (line.replace("\t-", "\t").split("\t") for line in text.splitlines())
    return [tuple(cells) for head, *cells in rows if head == name]


@functools.cache
def forms(name: str) -> dict[str, tuple[str, ...]]:
    """Return the rows of a table by their first column."""
    return {word: tuple(cells) for word, *cells in table(name)}


@functools.cache
def nouns() -> dict[str, Noun]:
    """Return the nouns with one sense by their English words, those of a class in succession."""
    return {row[0]: Noun(*row) for row in table("noun")}


@functools.cache
def nouns_of(kind: str) -> list[Noun]:
    """Return the nouns of a class."""
    return [noun for noun in nouns().values() if noun.kind == kind]


@functools.cache
def senses() -> list[Noun]:
    """Return the senses of polysemous nouns."""
    return [Noun(*row[:4], *map(_split, row[4:])) for row in table("sense")]


@functools.cache
def adjectives() -> dict[str, Adjective]:
    """Return the adjectives by their English words."""
    rows = table("adjective")
    return {words[0]: Adjective(*words, frozenset(_split(kinds))) for *words, kinds in rows}


@functools.cache
def adjectives_of(kind: str) -> list[Adjective]:
    """Return the adjectives that suit a class of nouns."""
    return [adjective for adjective in adjectives().values() if kind in adjective.kinds]


@functools.cache
def verbs() -> dict[str, Verb]:
    """Return the verbs by their English words."""
    return {
        words[0]: Verb(*words, frozenset(_split(subjects)), complement, frozenset(_split(objects)))
        for *words, subjects, complement, objects in table("verb")
    }


def _split(cell: str) -> tuple[str, ...]:
    return tuple(cell.split("/")) if cell else ()


def starts_with_vowel(french: str) -> bool:
    """Return whether the word before it elides: a vowel or a mute h."""
    return french[0] in "aeiouhàâéèêîôûœAEIOUHÉ" and french not in forms("aspirated")


def french_plural(word: str) -> str:
    """Return the plural of a noun or adjective.

    >>> french_plural("cheval"), french_plural("oiseau"), french_plural("en bois")
    ('chevaux', 'oiseaux', 'en bois')
    """
    if word in forms("french_plural"):
        return forms("french_plural")[word][0]
    if word[-1] in "sxz" or word.startswith("en "):
        return word
    if word.endswith("al"):
        return word[:-1] + "ux"
    return word + ("x" if word.endswith("eau") else "s")


def english_plural(word: str) -> str:
    """Return the plural of a noun, or the -s form of a verb."""
    if word in forms("english_plural"):
        return forms("english_plural")[word][0]
    if word.endswith(("s", "x", "ch", "sh", "go", "tomato")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def agree(adjective: Adjective, gender: str, plural: bool, next_word: str = "") -> str:
    """Return the French form of an adjective; `next_word` is the noun that it precedes.

    >>> old = adjectives()["old"]
    >>> agree(old, "m", False, "hôtel"), agree(old, "m", True, "hôtels")
    ('vieil', 'vieux')
    """
    form = adjective.feminine if gender == "f" else adjective.masculine
    if plural:
        return french_plural(form)
    if next_word and starts_with_vowel(next_word):
        return forms("before_vowel").get(form, (form,))[0]
    return form


def present(infinitive: str) -> dict[str, str]:
    """Return the French present tense by person."""
    stem = infinitive[:-2]
    soft = stem + "e" if stem.endswith("g") else stem
    regular = (stem + "e", stem + "e", soft + "ons", stem + "ez", stem + "ent")
    return dict(zip(PERSONS, forms("irregular").get(infinitive, regular), strict=False))


def imparfait(infinitive: str) -> dict[str, str]:
    """Return the French imparfait by person: from the stem of the present with `nous`.

    >>> imparfait("manger")["il"], imparfait("manger")["nous"]
    ('mangeait', 'mangions')
    """
    stem = "ét" if infinitive == "être" else present(infinitive)["nous"][:-3]
    hard = stem[:-1] if stem.endswith("ge") else stem
    endings = (stem + "ais", stem + "ait", hard + "ions", hard + "iez", stem + "aient")
    return dict(zip(PERSONS, endings, strict=True))


def participle(infinitive: str, gender: str = "m", plural: bool = False) -> str:
    """Return the French past participle in agreement."""
    *_, form = forms("irregular").get(infinitive, [infinitive[:-2] + "é"])
    form += "e" if gender == "f" else ""
    return french_plural(form) if plural else form

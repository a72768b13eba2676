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
    others: tuple[str, ...] = ()

    @property
    def cues(self) -> set[str]:
        """Words that occur with this sense, and with no other sense of the word."""
        return {*self.owners, *self.wholes, *self.adjectives, *self.others}


class Adjective(NamedTuple):
    """An adjective; `order` is its rank among English adjectives."""

    english: str
    masculine: str
    feminine: str
    order: str
    kinds: tuple[str, ...]


class Verb(NamedTuple):
    """A verb; `past` is the French past tense or "posture", `complement` its kind of complement."""

    english: str
    particle: str
    english_past: str
    french: str
    past: str
    subjects: frozenset[str]
    complement: str
    objects: frozenset[str]


def _split(cell: str) -> tuple[str, ...]:
    return tuple(filter(None, cell.split("/")))


# Rows of each table of lexicon.tsv, without its name; and the same by their first column.
TABLES: dict[str, list[tuple[str, ...]]] = {}
FORMS: dict[str, dict[str, tuple[str, ...]]] = {}
for _line in Path(__file__).with_name("lexicon.tsv").read_text("utf-8").splitlines():
    _name, *_row = _line.replace("\t-", "\t").split("\t")
    if _row:  # no comment
        TABLES.setdefault(_name, []).append((*_row,))
        FORMS.setdefault(_name, {})[_row[0]] = (*_row[1:],)

# Nouns with one sense by their English words, those of a class in succession; polysemous ones.
NOUNS = {row[0]: Noun(*row) for row in TABLES["noun"]}
SENSES = [Noun(*row[:4], *map(_split, row[4:])) for row in TABLES["sense"]]
BY_FRENCH = {noun.french: noun for noun in [*NOUNS.values(), *SENSES]}
ADJECTIVES = {row[0]: Adjective(*row[:4], _split(row[4])) for row in TABLES["adjective"]}
VERBS = {
    words[0]: Verb(*words, frozenset(_split(subjects)), complement, frozenset(_split(objects)))
    for *words, subjects, complement, objects in TABLES["verb"]
}


@functools.cache
def nouns_of(kind: str) -> list[Noun]:
    """Return the nouns of a class."""
    return [noun for noun in NOUNS.values() if noun.kind == kind]


@functools.cache
def adjectives_of(kind: str) -> list[Adjective]:
    """Return the adjectives that suit a class of nouns."""
    return [adjective for adjective in ADJECTIVES.values() if kind in adjective.kinds]


def starts_with_vowel(french: str) -> bool:
    """Return whether the word before it elides: a vowel or a mute h."""
    return french[0] in "aeiouhàâéèêîôûœAEIOUHÉ" and french not in FORMS["aspirated"]


def french_plural(word: str) -> str:
    """Return the plural of a noun or adjective.

    >>> french_plural("cheval"), french_plural("oiseau"), french_plural("en bois")
    ('chevaux', 'oiseaux', 'en bois')
    """
    if word in FORMS["french_plural"]:
        return FORMS["french_plural"][word][0]
    if word[-1] in "sxz" or word.startswith("en "):
        return word
    if word.endswith("al"):
        return word[:-1] + "ux"
    return word + ("x" if word.endswith("eau") else "s")


def english_plural(word: str) -> str:
    """Return the plural of a noun, or the -s form of a verb."""
    if word in FORMS["english_plural"]:
        return FORMS["english_plural"][word][0]
    if word.endswith(("s", "x", "ch", "sh", "go", "tomato")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def present(infinitive: str) -> dict[str, str]:
    """Return the French present tense by person."""
    stem = infinitive[:-2]
    soft = stem + "e" if stem.endswith("g") else stem
    regular = (stem + "e", stem + "e", soft + "ons", stem + "ez", stem + "ent")
    return dict(zip(PERSONS, FORMS["irregular"].get(infinitive, regular), strict=False))


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
    *_, form = FORMS["irregular"].get(infinitive, [infinitive[:-2] + "é"])
    form += "e" if gender == "f" else ""
    return french_plural(form) if plural else form

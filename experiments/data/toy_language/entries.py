"""Entries of the lexicon: nouns, adjectives, verbs and the senses of polysemous words."""

from collections.abc import Iterable
from dataclasses import dataclass

from experiments.data.toy_language import lexicon
from experiments.data.toy_language.morphology import french_plural


def _rows(table: str) -> list[list[str]]:
    lines = [line for line in table.strip().splitlines() if line]
    return [[cell.replace("~", " ") for cell in line.split()] for line in lines]


@dataclass(frozen=True)
class Sense:
    """Cues of one sense of a polysemous noun: words that occur with none of its other senses."""

    owners: tuple[str, ...]
    wholes: tuple[str, ...]
    adjectives: tuple[str, ...]

    @property
    def cues(self) -> frozenset[str]:
        """All cues of this sense."""
        return frozenset(self.owners + self.wholes + self.adjectives)


@dataclass(frozen=True)
class Noun:
    """A noun, or one sense of a polysemous noun."""

    english: str
    french: str
    gender: str
    kind: str
    sense: Sense | None = None


@dataclass(frozen=True)
class Adjective:
    """An adjective; `order` is its rank among English adjectives."""

    english: str
    masculine: str
    feminine: str
    order: str
    kinds: frozenset[str]

    @property
    def before(self) -> bool:
        """Whether it precedes the noun in French, as in English."""
        return self.order == "before"

    def agree(self, gender: str, plural: bool) -> str:
        """Return the French form."""
        form = self.feminine if gender == "f" else self.masculine
        return french_plural(form) if plural else form


@dataclass(frozen=True)
class Verb:
    """A verb; `past` is the name of the French tense, `complement` the kind of complement."""

    english: str
    particle: str
    english_past: str
    french: str
    past: str
    subjects: frozenset[str]
    objects: frozenset[str]
    complement: str


def _kinds(names: Iterable[str]) -> frozenset[str]:
    return frozenset(kind for name in names for kind in lexicon.GROUPS.get(name, (name,)))


def _verb(english: str, past: str, french: str, tense: str, subjects: str, objects: str) -> Verb:
    base, _, particle = english.partition("_")
    complement, _, kinds = objects.rpartition(":")
    if kinds in ("-", "alone", "place", "water", "at", "to", "from", "modal", "play"):
        complement, kinds = kinds, ""
    return Verb(base, particle, past.partition("_")[0], french, tense,
                _kinds(subjects.split(",")), _kinds(kinds.split(",")),
                complement or "object")  # fmt: skip


def _sense(line: str) -> Noun:
    word, owners, wholes, adjectives = (tuple(part.split()) for part in line.split("|"))
    return Noun(*word, kind="polysemous", sense=Sense(owners, wholes, adjectives))


NOUNS = tuple(Noun(*row) for row in _rows(lexicon.NOUNS))
NOUN = {noun.english: noun for noun in NOUNS}
KINDS = {kind: tuple(n for n in NOUNS if n.kind == kind) for kind in {n.kind: 0 for n in NOUNS}}

WOMEN = tuple(noun for noun in KINDS["person"] if noun.gender == "f")

SENSES = tuple(_sense(line) for line in lexicon.SENSES.strip().splitlines())
CONFLICTING_CUES = {
    noun: frozenset().union(
        *(n.sense.cues for n in SENSES if n.english == noun.english and n is not noun)
    ) - noun.sense.cues
    for noun in SENSES
}  # fmt: skip

ADJECTIVES = tuple(Adjective(*row[:4], _kinds(row[4:])) for row in _rows(lexicon.ADJECTIVES))
ADJECTIVE = {adjective.english: adjective for adjective in ADJECTIVES}
ADJECTIVES_OF = {kind: tuple(a for a in ADJECTIVES if kind in a.kinds) for kind in KINDS}

VERBS = tuple(_verb(*row) for row in _rows(lexicon.VERBS))
VERB = {verb.english: verb for verb in VERBS}
NEUTRAL_VERBS = tuple(VERB[name.partition("_")[0]] for name in lexicon.NEUTRAL_VERBS)
SPOKEN_VERBS = tuple(VERB[name.partition("_")[0]] for name in lexicon.SPOKEN_VERBS)

NAMES = tuple(map(tuple, _rows(lexicon.NAMES)))
COUNTRIES = tuple(tuple(c.replace("_", " ") for c in row) for row in _rows(lexicon.COUNTRIES))
MONTHS = tuple(map(tuple, _rows(lexicon.MONTHS)))
TIMES = tuple(map(tuple, _rows(lexicon.TIMES)))
ADVERBS = tuple(map(tuple, _rows(lexicon.ADVERBS)))
PREPOSITIONS = tuple((row[0], row[1], frozenset(row[2:])) for row in _rows(lexicon.PREPOSITIONS))
PLAYED = tuple(map(tuple, _rows(lexicon.PLAYED)))

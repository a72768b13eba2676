"""Noun phrases: determiners, adjectives and their order, names, places."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from experiments.data.toy_language import entries
from experiments.data.toy_language.entries import ADJECTIVES_OF, KINDS, Adjective, Noun
from experiments.data.toy_language.lexicon import BEFORE_VOWEL, OWNED
from experiments.data.toy_language.morphology import (
    english_article,
    english_plural,
    french_plural,
)
from experiments.data.toy_language.phrase import (
    French,
    Phrase,
    english,
    french,
    phrase,
)

T = TypeVar("T")

# Kinds of which only nouns in `lexicon.OWNED` have possessives.
_SELDOM_OWNED = (
    "person", "animal", "bird", "creature", "building", "land", "shore", "water", "part",
    "polysemous",
)  # fmt: skip
POSSESSIVES = {
    "my": ("mon", "ma", "mes"), "his": ("son", "sa", "ses"), "her": ("son", "sa", "ses"),
    "our": ("notre", "notre", "nos"), "your": ("votre", "votre", "vos"),
    "their": ("leur", "leur", "leurs"),
}  # fmt: skip
NUMBERS = {"two": "deux", "three": "trois", "many": "beaucoup de"}
COUNTLESS = ("mass", "drink", "beverage")
COUNTRY = {row[0]: row for row in entries.COUNTRIES}


@dataclass
class Draft:
    """State of a derivation: its random generator, and properties of the sentence so far."""

    rng: random.Random
    content: set[str] = field(default_factory=set)
    combinations: set[tuple[str, str, str]] = field(default_factory=set)
    senses: list[Noun] = field(default_factory=list)
    named: set[str] = field(default_factory=set)

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.rng.random() < probability

    def choose(self, things: Sequence[T]) -> T:
        """Return one of the things, with equal probability."""
        return things[int(self.rng.random() * len(things))]

    def name(self) -> tuple[str, str, str]:
        """Choose a name that the sentence does not contain yet."""
        chosen = self.choose([name for name in entries.NAMES if name[0] not in self.named])
        self.named.add(chosen[0])
        return chosen

    def combine(self, kind: str, first: str, noun: Noun | None) -> None:
        """Record a combination of words, except polysemous ones: train must contain their cues."""
        if noun is not None and noun.sense is None:
            self.combinations.add((kind, first, noun.english))


@dataclass
class NounPhrase:
    """A noun phrase with its gender, and its person for conjugation."""

    phrase: Phrase
    gender: str
    person: str
    noun: Noun | None = None

    @property
    def plural(self) -> bool:
        """Whether adjectives and participles are plural."""
        return self.person not in ("je", "il")

    @property
    def kind(self) -> str:
        """Selectional class."""
        return self.noun.kind if self.noun else "person"


def pick_noun(d: Draft, kinds: Sequence[str]) -> Noun:
    """Choose a noun of one of the classes."""
    return d.choose([noun for kind in kinds for noun in KINDS[kind]])


def pick_adjectives(d: Draft, noun: Noun) -> list[Adjective]:
    """Choose adjectives that suit the noun, in English order."""
    if noun.kind not in ADJECTIVES_OF or not ADJECTIVES_OF[noun.kind] or d.chance(0.5):
        return []
    chosen = [d.choose(ADJECTIVES_OF[noun.kind])]
    if d.chance(0.35):
        other = d.choose(ADJECTIVES_OF[noun.kind])
        rank = ("before", "quality", "colour", "origin", "material").index
        if other.order != chosen[0].order and "material" not in (other.order, chosen[0].order):
            chosen = sorted((chosen[0], other), key=lambda adjective: rank(adjective.order))
    return chosen


def _adjective(d: Draft, adjective: Adjective, gender: str, plural: bool) -> Phrase:
    d.content.add(adjective.english)
    form = adjective.agree(gender, plural)
    words = english(adjective.english)
    if form in BEFORE_VOWEL and adjective.before and not plural:
        return Phrase(words, [French(form, tuple(words), BEFORE_VOWEL[form])])
    return Phrase(words, french(form, words))


def predicate_adjective(d: Draft, adjective: Adjective, subject: NounPhrase) -> Phrase:
    """Return an adjective after *is*, in agreement with the subject."""
    d.combine("adjective", adjective.english, subject.noun)
    words = _adjective(d, adjective, subject.gender, subject.plural)
    return Phrase(words.english, [French(w.text, w.sources) for w in words.french])


def _nominal(d: Draft, noun: Noun, plural: bool, adjectives: Sequence[Adjective]) -> Phrase:
    """Return the noun and its adjectives, in the order of each language.

    Two adjectives after the French noun are in reverse English order: a fluffy blue creature, une
    créature bleue et duveteuse. There is no *et* after an origin: un livre français célèbre.
    """
    word = english(english_plural(noun.english) if plural else noun.english)
    head = french(french_plural(noun.french) if plural else noun.french, word)
    d.content.add(noun.english)
    if noun.sense:
        d.senses.append(noun)
    out = Phrase()
    after: list[French] = []
    before: list[French] = []
    for adjective in adjectives:
        d.combine("adjective", adjective.english, noun)
        part = _adjective(d, adjective, noun.gender, plural)
        out.english += part.english
        if adjective.before:
            before += part.french
        else:
            joined = after and adjective.order == "colour"
            after = part.french + (french("et") if joined else []) + after
    return Phrase(out.english + word, before + head + after)


def _determine(determiner: str, nominal: Phrase, noun: Noun, plural: bool) -> Phrase:
    feminine = noun.gender == "f"
    first = nominal.french[0].text
    preposed = plural and first != french_plural(noun.french)
    if determiner == "a":
        words = english(english_article(nominal.english[0].text))
        form = "une" if feminine else "un"
    elif determiner == "no":  # the object of a negation: il ne mange pas de pomme
        words = english("any" if plural or noun.kind in COUNTLESS
                        else english_article(nominal.english[0].text))  # fmt: skip
        form = "de"
    elif determiner == "some":
        words = english("some")
        form = ("de" if preposed else "des") if plural else "de la" if feminine else "de le"
    elif determiner == "the":
        words, form = english("the"), "les" if plural else "la" if feminine else "le"
    elif determiner == "this":
        words = english("these" if plural else "this")
        form = "ces" if plural else "cette" if feminine else "ce"
    elif determiner in NUMBERS:
        words, form = english(determiner), NUMBERS[determiner]
    else:
        words = english(determiner)
        form = POSSESSIVES[determiner][2 if plural else int(feminine)]
    return Phrase(words, french(form, words)) + nominal


def noun_phrase(
    d: Draft,
    noun: Noun,
    *,
    determiner: str | None = None,
    plural: bool | None = None,
    adjectives: Sequence[Adjective] | None = None,
    negated: bool = False,
) -> NounPhrase:
    """Return determiner, adjectives and noun; omitted arguments are chosen at random.

    Args:
        d: state of the derivation.
        noun: the head.
        determiner: *the*, *a*, *some*, *this*, a possessive or a number.
        plural: its number.
        adjectives: in English order.
        negated: whether it is the object of a negated verb, where *un*, *du*, *des* become *de*.
    """
    countless = noun.kind in COUNTLESS
    if plural is None:
        plural = not countless and determiner != "a" and d.chance(0.5 if noun.sense else 0.35)
    if determiner is None:
        pool = ["the"] * 4 + ["this"]
        if noun.english in OWNED or noun.kind not in _SELDOM_OWNED:
            pool += POSSESSIVES
        if countless:
            pool = ["the", "the", "some", "some", "some", "his", "her"]
        elif plural:
            # "did not find two cats" is ambiguous in both languages
            pool += ["some"] * 2 + ([] if negated else list(NUMBERS))
        else:
            pool += ["a"] * 4
        determiner = d.choose(pool)
    if negated and determiner in ("a", "some"):
        determiner = "no"
    if adjectives is None:
        adjectives = pick_adjectives(d, noun)
    nominal = _nominal(d, noun, plural, adjectives)
    built = _determine(determiner, nominal, noun, plural)
    return NounPhrase(built, noun.gender, "ils" if plural else "il", noun)


def person_name(d: Draft) -> NounPhrase:
    """Choose Jane, or Jane and Paul: feminine only if both are."""
    name, french_name, gender = d.name()
    one = NounPhrase(phrase(name, french_name), gender, "il")
    if d.chance(0.85):
        return one
    other, french_other, other_gender = d.name()
    both = one.phrase + phrase("and", "et") + phrase(other, french_other)
    return NounPhrase(both, "f" if gender == other_gender == "f" else "m", "ils")


def speaker(d: Draft) -> NounPhrase:
    """Choose I, we, you, he or she."""
    word, french_word, person, gender = d.choose((
        ("I", "je", "je", "?"), ("we", "nous", "nous", "?"), ("you", "vous", "vous", "?"),
        ("he", "il", "il", "m"), ("she", "elle", "il", "f"),
    ))  # fmt: skip
    return NounPhrase(phrase(word, french_word), gender, person)


def subject(d: Draft, kinds: Sequence[str]) -> NounPhrase:
    """Choose a subject of one of the classes."""
    if "person" in kinds and d.chance(0.35):
        return person_name(d)
    if "person" in kinds and d.chance(0.25):
        return speaker(d)
    return living(d, kinds)


def living(d: Draft, kinds: Sequence[str]) -> NounPhrase:
    """Choose a person, an animal or a bird; persons most often."""
    kind = "person" if "person" in kinds and d.chance(0.5) else d.choose(kinds)
    # Most professions in the lexicon are masculine, so women are chosen separately.
    women = kind == "person" and d.chance(0.35)
    return noun_phrase(d, d.choose(entries.WOMEN if women else KINDS[kind]))


def stand_in(meant: NounPhrase) -> NounPhrase:
    """Return the subject pronoun for a noun phrase of the same sentence, with its gender."""
    if meant.person not in ("il", "ils") or not meant.phrase.english:
        return meant
    if meant.gender == "?":  # I, we and you are repeated
        word, french_word = meant.phrase.english[0].text, meant.phrase.french[0].text
        return NounPhrase(phrase(word, french_word), meant.gender, meant.person)
    if meant.person == "ils":
        word = "they"
    elif meant.kind == "person":
        word = "she" if meant.gender == "f" else "he"
    else:
        word = "it"
    french_word = ("elle" if meant.gender == "f" else "il") + ("s" if meant.plural else "")
    return NounPhrase(phrase(word, french_word), meant.gender, meant.person, meant.noun)


def country(d: Draft, use: str) -> Phrase:
    """Choose a country or town: `in`, `to` or `from` it, or as an `object`."""
    name = d.choose(entries.COUNTRIES)[0]
    d.combinations.add(("place", use, name))
    return country_phrase(name, use)


def country_phrase(name: str, use: str) -> Phrase:
    """Return `in` Africa, `to` Japan, `from` France, or a bare `object`."""
    _, french_name, article, inside, outside = COUNTRY[name]
    place = english(name)
    # In *the United States* the article is a separate word.
    the, bare = (place[:1], place[1:]) if place[0].text == "the" else ([], place)
    article_words = french("" if article == "-" else article, the)
    if use == "object":
        return Phrase(place, article_words + french(french_name, bare))
    preposition = english(use)
    before = outside if use == "from" else inside
    if article == "la":  # en Afrique, d'Afrique: feminine countries lose their article
        article_words = []
    words = french(before, preposition) + article_words + french(french_name, bare)
    return Phrase(preposition + place, words)


def place(d: Draft) -> Phrase:
    """Choose a place: in the forest, near the house, in Africa."""
    if d.chance(0.3):
        return country(d, "in")
    noun = pick_noun(d, ("land", "shore", "water", "building"))
    fitting = [p for p in entries.PREPOSITIONS if noun.kind in p[2]]
    word, french_word, _ = d.choose(fitting)
    d.combine("place", word, noun)
    where = noun_phrase(d, noun, determiner=d.choose(("the", "the", "the", "a", "this")))
    return phrase(word, french_word) + where.phrase


def in_water(d: Draft) -> Phrase:
    """Choose a place in water: in the river, in a lake."""
    noun = d.choose(KINDS["water"])
    where = noun_phrase(d, noun, determiner=d.choose(("the", "a", "this")), plural=False)
    return phrase("in", "dans") + where.phrase


def destination(d: Draft, use: str) -> Phrase:
    """Choose a destination or origin, with the preposition `at`, `to` or `from`."""
    if d.chance(0.4):
        return country(d, "in" if use == "at" else use)
    noun = d.choose(KINDS["building"])
    d.combine("place", use, noun)
    where = noun_phrase(d, noun, determiner="the", plural=False, adjectives=())
    return phrase(use, "de" if use == "from" else "à") + where.phrase


def of(whole: NounPhrase) -> Phrase:
    """Return the whole that a thing is a part of: of the river."""
    return phrase("of", "de") + whole.phrase

"""Phrases in both languages, and those of nouns: determiners, adjectives, names, pronouns, places.

Every French word refers to the English words it translates. English words are compared by identity,
so phrases are joined by concatenating lists, in the order of each language. Positions, elision and
contraction are computed at the end.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from experiments.data.tokenizers import SentencePair
from experiments.data.toy_language import lexicon
from experiments.data.toy_language.lexicon import Adjective, Noun

T = TypeVar("T")
_POSSESSIVES = ("my", "his", "her", "our", "your", "their")
ENGLISH_ORDER = ("before", "quality", "colour", "origin", "material")
COUNTLESS = ("mass", "drink", "beverage", "money")


class English(str):
    """One English word at one position of a sentence."""

    __slots__ = ()


class French(NamedTuple):
    """One French word, and the English words it translates."""

    text: str
    sources: tuple[English, ...] = ()


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
    return [French(word, sources) for word in text.split()]


def phrase(english_text: str, french_text: str) -> Phrase:
    """Return a phrase, aligned word by word if both sides have equally many words."""
    words, texts = english(english_text), french_text.split()
    if len(words) != len(texts):
        return Phrase(words, french(french_text, words))
    return Phrase(words, [French(text, (word,)) for text, word in zip(texts, words, strict=True)])


def definite(english_text: str, article: str, noun: str) -> Phrase:
    """Return a name whose French article translates *the*, or nothing if English has none."""
    words = english(english_text)
    the = [word for word in words if word == "the"]
    return Phrase(words, french(article, the) + french(noun, words[len(the) :]))


def finish(sentence: Phrase) -> SentencePair:
    """Contract and elide the French words, from the last to the first, and number the links.

    >>> finish(phrase("Paul", "Paul") + phrase("of", "de") + definite("Africa", "la", "Afrique"))
    SentencePair(source='Paul of Africa', target="Paul de l'Afrique", links='0-0 1-1 2-3')
    """
    spelt: list[French] = []
    for text, sources in reversed(sentence.french):
        following = spelt[-1].text if spelt else "."
        if contracted := lexicon.FORMS["contraction"].get(f"{text} {following}"):
            sources += spelt.pop().sources
            text = contracted[0]
        elif text in lexicon.FORMS["elided"] and lexicon.starts_with_vowel(following):
            text = lexicon.FORMS["elided"][text][0]
        spelt.append(French(text, sources))
    spelt.reverse()
    place = {id(word): i for i, word in enumerate(sentence.english)}
    links = sorted({(place[id(s)], j) for j, word in enumerate(spelt) for s in word.sources})
    return SentencePair(
        " ".join(sentence.english),
        " ".join(word.text for word in spelt).replace("' ", "'"),
        " ".join(f"{source}-{target}" for source, target in links),
    )


@dataclass
class NounPhrase(Phrase):
    """A noun phrase, its gender ("?" if unknown), and its person, as in `PERSONS`."""

    gender: str = "?"
    person: str = "il"
    noun: Noun | None = None

    @property
    def plural(self) -> bool:
        """Whether adjectives and participles are plural."""
        return self.person not in ("je", "il")

    @property
    def kind(self) -> str:
        """Class of the noun."""
        return self.noun.kind if self.noun else "person"


def referring(words: Phrase, gender: str, person: str, noun: Noun | None = None) -> NounPhrase:
    """Return the words as a noun phrase."""
    return NounPhrase(words.english, words.french, gender, person, noun)


def _determiners(noun: Noun, plural: bool, negated: bool) -> list[str]:
    """Return the determiners to choose from; one that repeats is more probable."""
    if noun.kind in COUNTLESS:
        return ["the", "the", "some", "some", "some", "his", "her"]
    pool = ["the"] * 4 + ["this"]
    if {noun.english, noun.kind} & lexicon.FORMS["owned"].keys():
        pool += _POSSESSIVES
    if not plural:
        return pool + ["a"] * 4
    # "did not find two cats" is ambiguous in both languages.
    return pool + ["some"] * 2 + ([] if negated else ["two", "three", "many"])


def _determine(determiner: str, rest: Phrase, noun: Noun, plural: bool) -> Phrase:
    """Add a determiner to a noun with its adjectives."""
    word = determiner
    form = lexicon.FORMS["determiner"][word][2 if plural else noun.gender == "f"]
    if word == "some" and plural and rest.french[0].text != lexicon.french_plural(noun.french):
        form = "de"  # before an adjective: de grands chiens
    if word == "no":  # the object of a negation: il ne mange pas de pomme
        word = "any" if plural or noun.kind in COUNTLESS else "a"
    if word == "none":  # the same without an English word: Paul does not eat bread
        word = ""
    if word == "a":
        following = rest.english[0]
        word = "an" if following[0] in "aeiouAEIOU" or following == "honest" else "a"
    if word == "this" and plural:
        word = "these"
    return phrase(word, form) + rest


def stand_in(meant: NounPhrase) -> NounPhrase:
    """Return the subject pronoun for a noun phrase of the same sentence, with its gender."""
    if meant.person in ("je", "nous", "vous"):  # repeated; both French words link to the last one
        return meant
    word, french_word, *_ = _pronouns(meant)
    return referring(phrase(word, french_word), meant.gender, meant.person, meant.noun)


def object_pronoun(meant: NounPhrase) -> Phrase:
    """Return it, him, her or them for a noun phrase of the same sentence."""
    *_, word, french_word = _pronouns(meant)
    return phrase(word, french_word)


def _pronouns(meant: NounPhrase) -> tuple[str, ...]:
    group = "plural" if meant.plural else "person" if meant.kind == "person" else "thing"
    return lexicon.FORMS["reference"][f"{group} {'f' if meant.gender == 'f' else 'm'}"]


@dataclass
class Draft:
    """State of a derivation: its random generator, and properties of the sentence so far."""

    rng: random.Random  # every choice reads it, in the order of the derivation
    content: set[str] = field(default_factory=set)  # English nouns and adjectives
    # (relation, word, word), such as ("adjective", "red", "car")
    combinations: set[tuple[str, str, str]] = field(default_factory=set)
    senses: list[Noun] = field(default_factory=list)  # polysemous nouns
    # (content, senses) of earlier clauses; their cues do not count in later ones
    closed: list[tuple[set[str], list[Noun]]] = field(default_factory=list)
    named: set[str] = field(default_factory=set)  # names of persons

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.rng.random() < probability

    def choose(self, things: Sequence[T]) -> T:
        """Return one of the things, with equal probability."""
        return things[int(self.rng.random() * len(things))]

    def close_clause(self) -> None:
        """Begin a clause in which a polysemous word may have another sense."""
        self.closed.append((self.content, self.senses))
        self.content, self.senses = set(), []

    @property
    def is_unambiguous(self) -> bool:
        """Whether every polysemous word has cues of its sense in its clause, and of no other."""
        for content, senses in [*self.closed, (self.content, self.senses)]:
            cued = [sense for sense in lexicon.SENSES if sense.cues & content]
            if any([s for s in cued if s.english == noun.english] != [noun] for noun in senses):
                return False
        return True

    def combine(self, relation: str, word: str, noun: Noun | None) -> None:
        """Record a combination of words, except polysemous ones: train must contain their cues."""
        if noun is not None and not noun.cues:
            self.combinations.add((relation, word, noun.english))

    def pick_noun(self, kinds: Sequence[str]) -> Noun:
        """Choose a noun of one of the classes."""
        return self.choose([noun for kind in kinds for noun in lexicon.nouns_of(kind)])

    def noun_phrase(
        self,
        noun: Noun,
        *,
        determiner: str | None = None,
        plural: bool | None = None,
        adjectives: Sequence[Adjective] | None = None,
        negated: bool = False,
        whole: Noun | None = None,
    ) -> NounPhrase:
        """Return determiner, adjectives and noun; omitted arguments are chosen at random.

        The object of a negated verb has *de* instead of *un*, *du* and *des*. With a `whole`, the
        English is a compound noun: the river bank, la rive du fleuve.
        """
        if plural is None:
            can_be_plural = noun.kind not in COUNTLESS and determiner != "a"
            plural = can_be_plural and self.chance(0.5 if noun.cues else 0.35)
        if determiner is None:
            determiner = self.choose(_determiners(noun, plural, negated))
        if negated and determiner in ("a", "some", ""):
            determiner = "no" if determiner else "none"
        if adjectives is None:
            adjectives = self._pick_adjectives(noun)
        words = self._with_adjectives(noun, plural, adjectives, whole)
        words = _determine(determiner, words, noun, plural)
        return referring(words, noun.gender, "ils" if plural else "il", noun)

    def _pick_adjectives(self, noun: Noun) -> list[Adjective]:
        """Choose up to two adjectives that suit the noun, in English order."""
        fitting = lexicon.adjectives_of(noun.kind)
        if not fitting or self.chance(0.5):
            return []
        first = self.choose(fitting)
        if self.chance(0.35):
            other = self.choose(fitting)
            if other.order != first.order and "material" not in (other.order, first.order):
                return sorted((first, other), key=lambda a: ENGLISH_ORDER.index(a.order))
        return [first]

    def _with_adjectives(
        self, noun: Noun, plural: bool, adjectives: Sequence[Adjective], whole: Noun | None
    ) -> Phrase:
        """Return the noun, or compound noun, and its adjectives, in the order of each language.

        Two adjectives after the French noun are in reverse English order: a fluffy blue creature,
        une créature bleue et duveteuse. There is no *et* after an origin: un livre français
        célèbre.
        """
        noun_words = english(lexicon.english_plural(noun.english) if plural else noun.english)
        head = french(lexicon.french_plural(noun.french) if plural else noun.french, noun_words)
        self.content.add(noun.english)
        if noun.cues:
            self.senses.append(noun)
        words, before, after = [], [], []
        for adjective in adjectives:
            self.combine("adjective", adjective.english, noun)
            added = self.agreeing(adjective, noun.gender, plural, head[0].text)
            words += added.english
            if adjective.order == "before":
                before = added.french
            else:
                joined = after and adjective.order == "colour"
                after = added.french + (french("et") if joined else []) + after
        if whole:
            self.content.add(whole.english)
            modifier = english(whole.english)
            article = french("de la" if whole.gender == "f" else "de le")
            words, after = words + modifier, after + article + french(whole.french, modifier)
        return Phrase(words + noun_words, before + head + after)

    def agreeing(
        self, adjective: Adjective, gender: str, plural: bool, next_word: str = ""
    ) -> Phrase:
        """Return an adjective in agreement; `next_word` is the French noun that it may precede."""
        self.content.add(adjective.english)
        form = adjective.feminine if gender == "f" else adjective.masculine
        if plural:
            form = lexicon.french_plural(form)
        elif next_word and lexicon.starts_with_vowel(next_word):
            form = lexicon.FORMS["before_vowel"].get(form, (form,))[0]
        words = english(adjective.english)
        return Phrase(words, french(form, words))

    def person_name(self, alone: bool = False) -> NounPhrase:
        """Choose Jane, or Jane and Paul unless `alone`: feminine only if both are."""
        name, gender = self._new_name()
        if alone or self.chance(0.85):
            return referring(phrase(name, name), gender, "il")
        other, other_gender = self._new_name()
        both = phrase(f"{name} and {other}", f"{name} et {other}")
        return referring(both, "f" if gender == other_gender == "f" else "m", "ils")

    def _new_name(self) -> tuple[str, str]:
        """Choose a name that the sentence does not contain yet, and its gender."""
        chosen = self.choose([name for name in lexicon.TABLES["name"] if name[0] not in self.named])
        self.named.add(chosen[0])
        return chosen

    def speaker(self) -> NounPhrase:
        """Choose I, we, you, he or she."""
        word, french_word, person, gender = self.choose(lexicon.TABLES["pronoun"])
        return referring(phrase(word, french_word), gender, person)

    def subject(self, kinds: Sequence[str]) -> NounPhrase:
        """Choose a subject of one of the classes, which include persons."""
        if self.chance(0.35):
            return self.person_name()
        return self.speaker() if self.chance(0.35) else self.living(kinds)

    def living(self, kinds: Sequence[str]) -> NounPhrase:
        """Choose a person, an animal or a bird; persons most often."""
        kind = "person" if self.chance(0.5) else self.choose(kinds)
        # Most professions in the lexicon are masculine, so women are chosen separately.
        women = kind == "person" and self.chance(0.35)
        candidates = [noun for noun in lexicon.nouns_of(kind) if noun.gender == "f" or not women]
        return self.noun_phrase(self.choose(candidates))

    def country(self, use: str) -> Phrase:
        """Choose a country or town: `in`, `to` or `from` it, or as an `object`."""
        name, french_name, article = self.choose(lexicon.TABLES["country"])
        self.combinations.add(("place", use, name))
        if use == "object":
            return definite(name, article, french_name)
        if article == "la":  # en Afrique, d'Afrique: feminine countries lose their article
            return phrase(use, "de" if use == "from" else "en") + phrase(name, french_name)
        return phrase(use, "de" if use == "from" else "à") + definite(name, article, french_name)

    def place(self) -> Phrase:
        """Choose a place: in the forest, near the house, in Africa."""
        if self.chance(0.3):
            return self.country("in")
        noun = self.pick_noun(("land", "shore", "water", "building"))
        fitting = [row for row in lexicon.TABLES["preposition"] if noun.kind in row[2].split("/")]
        word, french_word, _ = self.choose(fitting)
        self.combine("place", word, noun)
        where = self.noun_phrase(noun, determiner=self.choose(("the", "the", "the", "a", "this")))
        return phrase(word, french_word) + where

    def destination(self, use: str) -> Phrase:
        """Choose a destination or origin, with the preposition `at`, `to` or `from`."""
        if self.chance(0.5):
            return self.country("in" if use == "at" else use)
        noun = self.choose(lexicon.nouns_of("building"))
        self.combine("place", use, noun)
        where = self.noun_phrase(noun, determiner="the", plural=False, adjectives=())
        return phrase(use, "de" if use == "from" else "à") + where

"""Clauses: a verb with its complements and adverbs."""

from dataclasses import replace

from experiments.data.toy_language import entries
from experiments.data.toy_language.entries import (
    ADJECTIVE,
    ADJECTIVES_OF,
    SPOKEN_VERBS,
    VERBS,
    Verb,
)
from experiments.data.toy_language.lexicon import STATES
from experiments.data.toy_language.nominal import (
    Draft,
    NounPhrase,
    country,
    destination,
    in_water,
    noun_phrase,
    person_name,
    pick_noun,
    place,
    predicate_adjective,
)
from experiments.data.toy_language.phrase import Phrase, french, phrase
from experiments.data.toy_language.predicate import Manner, conjugate

BE = Verb("be", "", "was", "être", "imparfait", frozenset(), frozenset(), "adjective")
THINGS = ("thing", "clothes", "vehicle", "building", "land", "reading", "food", "furniture")
LIVING = ("person", "animal", "bird", "creature")
NOT_PREDICATED = ("new", "long", "young")


PLAIN = {
    kind: tuple(v for v in VERBS if kind in v.subjects and v.complement not in ("give", "modal"))
    for kind in LIVING
}
GIVING = tuple(verb for verb in VERBS if verb.complement == "give")
_MOVING = tuple(verb for verb in VERBS if verb.past == "être")
_MODALS = tuple(verb for verb in VERBS if verb.complement == "modal")


def manner(d: Draft, verb: Verb, who: NounPhrase, *, past: bool) -> Manner:
    """Choose a tense, and optionally a negation, an adverb or a modal, for a verb and a subject."""
    how = Manner(past=past)
    completed = past and verb.past != "imparfait"
    state = verb.english in STATES
    if d.chance(0.2):
        moves = verb.past == "être"
        fitting = ("not", "never", "no longer")[: 2 if completed or moves else 3]
        if state:  # "never knows" and "never loves" are unusual
            fitting = ("not", "no longer")
        how.negation = d.choose(("not", "not", "no longer") if verb is BE else fitting)
    elif not completed and not state and verb is not BE and d.chance(0.12):
        how.adverb = d.choose(entries.ADVERBS)
    easy = verb.past == "avoir" if past else verb in SPOKEN_VERBS
    unspoken = (who.gender == "?" and not easy) or (past and verb.english_past == "-")
    if unspoken or (verb is not BE and who.kind == "person" and d.chance(0.1)):
        how = replace(how, modal=_MODALS[0] if state else d.choose(_MODALS), adverb=None)
        if how.negation == "never":
            how.negation = "not"
    return how


def pick_verb(d: Draft, who: NounPhrase) -> Verb:
    """Choose a verb for the subject; I, we and you prefer `SPOKEN_VERBS`."""
    if who.kind == "person" and d.chance(0.15):  # their participles have the most forms
        return d.choose(_MOVING)
    if who.gender == "?" and d.chance(0.6):
        return d.choose([verb for verb in SPOKEN_VERBS if verb.complement != "modal"])
    return d.choose(PLAIN[who.kind])


def object_of(d: Draft, verb: Verb, negated: bool) -> NounPhrase:
    """Choose a direct object of a class that the verb takes."""
    kinds = sorted(verb.objects - {"country"})
    if "person" in kinds and d.chance(0.3):
        return person_name(d)
    noun = pick_noun(d, (d.choose(kinds),))
    d.combine("object", verb.english, noun)
    determiner = d.choose(("the", "the", "this")) if verb.english in STATES else None
    return noun_phrase(d, noun, determiner=determiner, negated=negated)


def complement(d: Draft, verb: Verb, negated: bool) -> Phrase:
    """Choose the complement of the verb."""
    if verb.complement in ("at", "to", "from"):
        return destination(d, verb.complement)
    if verb.complement == "place":
        return place(d)
    if verb.complement == "alone":
        return Phrase()
    if verb.complement == "water":
        return in_water(d)
    if verb.complement == "play":
        english, name, preposition = d.choose(entries.PLAYED)
        d.combinations.add(("play", "play", english))
        return _played(english, name, preposition)
    if verb.complement == "-":
        return place(d) if d.chance(0.6) else Phrase()
    if "country" in verb.objects and d.chance(0.35):
        return country(d, "object")
    return object_of(d, verb, negated).phrase


def _played(english: str, name: str, preposition: str) -> Phrase:
    whole = phrase(english, name)
    head = whole.english[-1]
    article = whole.french[0]._replace(sources=tuple(whole.english[:-1]))
    noun = whole.french[1]._replace(sources=(head,))
    return Phrase(whole.english, [*french(preposition), article, noun])


def time(d: Draft, past: bool) -> Phrase:
    """Choose a time: in September, every morning, yesterday."""
    if d.chance(0.3):
        month, mois = d.choose(entries.MONTHS)
        return phrase("in", "en") + phrase(month, mois)
    fitting = [t for t in entries.TIMES if t[2] in ("any", "past" if past else "present")]
    word, french_word, _ = d.choose(fitting)
    return phrase(word, french_word)


def verb_phrase(d: Draft, who: NounPhrase, verb: Verb, *, past: bool) -> tuple[Phrase, Manner]:
    """Return the verb with its complement, and its manner."""
    how = manner(d, verb, who, past=past)
    if who.noun:
        d.combinations.add(("subject", who.noun.english, verb.english))
    verb_words = conjugate(verb, who, how)
    rest = complement(d, verb, how.negation is not None)
    return verb_words + rest, how


def is_adjective(d: Draft, who: NounPhrase, past: bool, *, passing: bool = False) -> Phrase:
    """Return "is happy" in agreement with the subject; `passing` excludes sizes and origins."""
    if who.noun and who.noun.sense:  # the attribute is its cue
        fitting = [ADJECTIVE[word] for word in who.noun.sense.adjectives]
    else:
        fitting = [a for a in ADJECTIVES_OF[who.kind]
                   if a.english not in d.content and a.english not in NOT_PREDICATED]  # fmt: skip
        if passing:
            fitting = [adjective for adjective in fitting if adjective.order == "quality"]
    how = manner(d, BE, who, past=past)
    return conjugate(BE, who, how) + predicate_adjective(d, d.choose(fitting), who)

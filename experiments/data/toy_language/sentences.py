"""Sentences: verbs with their complements, clauses of them, and sentences of clauses.

Each construction builds both languages together. A subject pronoun always refers to the subject of
the previous clause, and an object pronoun to the object of the previous verb, so that its gender is
never ambiguous.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from experiments.data.tokenizers import SentencePair
from experiments.data.toy_language import lexicon
from experiments.data.toy_language.lexicon import Adjective, Noun, Verb
from experiments.data.toy_language.nouns import (
    Draft,
    NounPhrase,
    agreeing,
    country,
    destination,
    in_water,
    living,
    noun_phrase,
    object_pronoun,
    person_name,
    pick_noun,
    place,
    referring,
    speaker,
    stand_in,
    subject,
)
from experiments.data.toy_language.phrase import Phrase, definite, english, finish, french, phrase

LIVING = ("person", "animal", "bird", "creature")
# Verbs by the class of the subject, without those that need an indirect object or a second verb.
_PLAIN = {
    kind: [v for v in lexicon.VERBS if kind in v.subjects and v.complement not in ("give", "modal")]
    for kind in LIVING
}
_GIVING = [verb for verb in lexicon.VERBS if verb.complement == "give"]
_MOVING = [verb for verb in lexicon.VERBS if verb.past == "être"]
_MODALS = [verb for verb in lexicon.VERBS if verb.complement == "modal"]
_NOT_PREDICATED = ("new", "long", "young")

_NEGATIONS = {"not": "pas", "never": "jamais", "no longer": "plus"}
_AM = {"je": "am", "il": "is", "nous": "are", "vous": "are", "ils": "are"}
_WAS = {"je": "was", "il": "was", "nous": "were", "vous": "were", "ils": "were"}


@dataclass
class Manner:
    """Tense, negation, adverb, modal and pronouns of a verb."""

    past: bool = False
    negation: str | None = None
    adverb: tuple[str, str] = ("", "")
    modal: Verb | None = None
    pronouns: Phrase = field(default_factory=Phrase)  # after the English verb, before the French
    fronted: NounPhrase | None = None  # a direct object before the French verb

    @property
    def timely(self) -> bool:
        """Whether a time may be added: not after *never*, *no longer* or *often*."""
        return self.adverb == ("", "") and self.negation in (None, "not")


def manner(d: Draft, verb: Verb, who: NounPhrase, past: bool) -> Manner:
    """Choose a negation, an adverb or a modal for a verb and a subject, or none."""
    how = Manner(past=past)
    completed = past and verb.past != "imparfait"
    if d.chance(0.2):
        if verb is lexicon.BE:
            fitting = ("not", "not", "no longer")
        elif verb in lexicon.STATES:  # "never knows" and "never loves" are unusual
            fitting = ("not", "no longer")
        else:
            fitting = ("not", "never", "no longer")
            if completed or verb.past == "être":
                fitting = ("not", "never")
        how.negation = d.choose(fitting)
    elif not completed and verb not in (*lexicon.STATES, lexicon.BE) and d.chance(0.12):
        how.adverb = d.choose(lexicon.ADVERBS)
    easy = verb.past == "avoir" if past else verb in lexicon.SPOKEN_VERBS
    unspoken = (who.gender == "?" and not easy) or (past and verb.english_past == "-")
    if unspoken or (verb is not lexicon.BE and who.kind == "person" and d.chance(0.1)):
        how.modal = _MODALS[0] if verb in lexicon.STATES else d.choose(_MODALS)
        how.adverb = ("", "")
        if how.negation == "never":
            how.negation = "not"
    return how


def conjugate(verb: Verb, subject: NounPhrase, how: Manner) -> Phrase:
    """Return the verb in agreement with its subject, with negation, adverb, modal and pronouns.

    English: negation, adverb, verb, infinitive, pronouns; *never eats it*, *often wants to eat it*.
    French: ne, pronouns, verb, negation, adverb, participle; *ne l'a jamais mangée*. Pronouns
    follow a modal: *veut souvent la manger*.
    """
    finite = how.modal or verb
    negation, verb_words = _english_verb(finite, subject, how)
    meaning = verb_words or negation
    infinitive = english(f"{verb.english} {verb.particle}") if how.modal else []
    adverb = phrase(*how.adverb)
    if finite.english in ("be", "can"):  # is not, can no longer
        words = verb_words + negation
    else:
        words = negation + adverb.english + verb_words
    if is_compound := how.past and finite.past != "imparfait":
        form = lexicon.present(finite.past)[subject.person]
    else:
        form = (lexicon.imparfait if how.past else lexicon.present)(finite.french)[subject.person]
    translation = french(form, meaning)
    if not how.modal:
        translation = how.pronouns.french + translation
    if how.negation:
        closing = french(_NEGATIONS[how.negation], negation)
        translation = french("ne", negation) + translation + closing
    translation = translation + adverb.french
    if is_compound:
        translation += french(_participle(finite, subject, how), meaning)
    if how.modal:
        translation += how.pronouns.french + french(verb.french, infinitive)
    return Phrase(words + infinitive + how.pronouns.english, translation)


def _english_verb(verb: Verb, subject: NounPhrase, how: Manner) -> tuple[list, list]:
    """Return the words of the negation, with its auxiliary, and of the verb; *cannot* has both."""
    if verb is lexicon.BE:
        return english(how.negation or ""), english((_WAS if how.past else _AM)[subject.person])
    is_third = subject.person == "il" and verb.english != "can"
    if how.negation == "not" and verb.english == "can":
        return english("could not" if how.past else "cannot"), []
    if how.negation == "not":
        auxiliary = "did" if how.past else "does" if is_third else "do"
        return english(f"{auxiliary} not"), english(f"{verb.english} {verb.particle}")
    present_form = lexicon.english_plural(verb.english) if is_third else verb.english
    form = verb.english_past if how.past else present_form
    return english(how.negation or ""), english(f"{form} {verb.particle}")


def _participle(verb: Verb, subject: NounPhrase, how: Manner) -> str:
    """Return the participle: it agrees with the subject (être) or a preceding object (avoir)."""
    agrees_with = subject if verb.past == "être" else how.fronted
    if agrees_with is None:
        return lexicon.participle(verb.french)
    return lexicon.participle(verb.french, agrees_with.gender, agrees_with.plural)


def pick_verb(d: Draft, who: NounPhrase) -> Verb:
    """Choose a verb for the subject; I, we and you prefer `SPOKEN_VERBS`."""
    if who.kind == "person" and d.chance(0.15):  # their participles have the most forms
        return d.choose(_MOVING)
    if who.gender == "?" and d.chance(0.6):
        return d.choose(lexicon.SPOKEN_VERBS)
    return d.choose(_PLAIN[who.kind])


def verb_phrase(d: Draft, who: NounPhrase, verb: Verb, past: bool) -> tuple[Phrase, Manner]:
    """Return the verb with its complement, and its manner."""
    how = manner(d, verb, who, past)
    if who.noun:
        d.combinations.add(("subject", who.noun.english, verb.english))
    verb_words = conjugate(verb, who, how)
    return verb_words + _complement(d, verb, how.negation is not None), how


def _complement(d: Draft, verb: Verb, negated: bool) -> Phrase:
    """Choose the complement of the verb."""
    match verb.complement:
        case "at" | "to" | "from":
            return destination(d, verb.complement)
        case "place":
            return place(d)
        case "where":
            return place(d) if d.chance(0.6) else Phrase()
        case "water":
            return in_water(d)
        case "play":
            english_name, article, name, preposition = d.choose(lexicon.PLAYED)
            d.combinations.add(("play", "play", english_name))
            return Phrase([], french(preposition)) + definite(english_name, article, name)
        case "none":
            return Phrase()
    if "country" in verb.objects and d.chance(0.35):
        return country(d, "object")
    kinds = sorted(verb.objects - {"country"})
    if "person" in kinds and d.chance(0.3):
        return person_name(d)
    return _direct_object(d, verb, kinds, negated)


def _direct_object(d: Draft, verb: Verb, kinds: Sequence[str], negated: bool = False) -> NounPhrase:
    """Choose a direct object of one of the classes, each equally probable."""
    noun = pick_noun(d, (d.choose(kinds),))
    d.combine("object", verb.english, noun)
    determiner = d.choose(("the", "the", "this")) if verb in lexicon.STATES else None
    return noun_phrase(d, noun, determiner=determiner, negated=negated)


def time(d: Draft, past: bool) -> Phrase:
    """Choose a time: in September, every morning, yesterday."""
    if d.chance(0.3):
        return phrase("in", "en") + phrase(*d.choose(lexicon.MONTHS))
    tenses = ("any", "past" if past else "present")
    fitting = [words for *words, tense in lexicon.TIMES if tense in tenses]
    return phrase(*d.choose(fitting))


def is_adjective(d: Draft, who: NounPhrase, past: bool, *, passing: bool = False) -> Phrase:
    """Return "is happy" in agreement with the subject; `passing` excludes sizes and origins."""
    if who.noun and who.noun.cues:  # the attribute is its cue
        fitting = [lexicon.ADJECTIVE[word] for word in who.noun.adjectives]
    else:
        fitting = [
            a for a in lexicon.ADJECTIVES_OF[who.kind]
            if a.english not in d.content and a.english not in _NOT_PREDICATED
            and (a.order == "quality" or not passing)
        ]  # fmt: skip
    how, adjective = manner(d, lexicon.BE, who, past), d.choose(fitting)
    d.combine("adjective", adjective.english, who.noun)
    return conjugate(lexicon.BE, who, how) + agreeing(d, adjective, who.gender, who.plural)


def simple(d: Draft) -> Phrase:
    """Build a simple sentence: Jane visits Africa in September."""
    return _statement(d, subject(d, LIVING), d.chance(0.5))


def _statement(d: Draft, who: NounPhrase, past: bool) -> Phrase:
    """Return a subject and what it does, sometimes after a time."""
    if d.chance(0.12):
        words, how = verb_phrase(d, who, pick_verb(d, who), past)
        return (time(d, past) if how.timely else Phrase()) + who + words
    return who + _action(d, who, pick_verb(d, who), past, 0.3)


def _action(d: Draft, who: NounPhrase, verb: Verb, past: bool, share_timed: float) -> Phrase:
    """Return a verb phrase for this subject, and a time in a share: visits Africa in September."""
    words, how = verb_phrase(d, who, verb, past)
    return words + time(d, past) if how.timely and d.chance(share_timed) else words


def attribute(d: Draft) -> Phrase:
    """Build a sentence with an attribute: the car is not red."""
    noun = pick_noun(d, [kind for kind in lexicon.KINDS if lexicon.ADJECTIVES_OF[kind]])
    who = noun_phrase(d, noun, adjectives=None if d.chance(0.3) else ())
    return who + is_adjective(d, who, d.chance(0.4))


def subject_relative(d: Draft) -> Phrase:
    """Build agreement over a relative clause: the girls who live near the river are happy."""
    who, past = living(d, LIVING), d.chance(0.4)
    link = phrase("who" if who.kind == "person" else "that", "qui")
    head = who + link + verb_phrase(d, who, pick_verb(d, who), past)[0]
    if d.chance(0.6):
        return head + is_adjective(d, who, past)
    return head + _action(d, who, pick_verb(d, who), past, 0.3)


def object_relative(d: Draft) -> Phrase:
    """Build an object relative clause: la pomme que Marie a achetée est rouge."""
    verb = d.choose([v for v in _PLAIN["person"] if v.complement == "object"])
    kinds = [k for k in lexicon.KINDS if k in verb.objects - {"drink", "beverage", "person"}]
    if not kinds:
        return simple(d)
    thing = noun_phrase(d, pick_noun(d, kinds), determiner=d.choose(("the", "the", "this")))
    past = d.chance(0.6)
    return _that(d, thing, verb, past) + is_adjective(d, thing, past)


def _that(d: Draft, thing: NounPhrase, verb: Verb, past: bool) -> Phrase:
    """Return a thing with a relative clause: the apple that Marie bought."""
    who = subject(d, ("person",))
    how = manner(d, verb, who, past)
    how.fronted = thing
    d.combine("object", verb.english, thing.noun)
    return thing + phrase("that", "que") + who + conjugate(verb, who, how)


# Verbs of the first and of the second clause of `anaphora`: Marie buys the apple and eats it.
_FIRST_VERBS = tuple(lexicon.VERB[word] for word in ("buy", "find", "choose", "see"))
_SECOND_VERBS = [
    verb for verb in (*_PLAIN["person"], *_GIVING)
    if verb.objects & lexicon.VERB["buy"].objects
    and verb.english not in ("find", "choose", "see", "build", "write")
]  # fmt: skip
_TO_PERSON = (("to him", "lui"), ("to her", "lui"), ("to them", "leur"))


def anaphora(d: Draft) -> Phrase:
    """Build two clauses with an object pronoun: Marie buys the apple and eats it."""
    who, past = subject(d, ("person",)), d.chance(0.6)
    past = past or who.gender == "?"
    verb = d.choose([v for v in _SECOND_VERBS if not past or v.past == "avoir"])
    first = d.choose([v for v in _FIRST_VERBS if v.objects & verb.objects and v is not verb])
    thing = _direct_object(d, first, sorted(first.objects & verb.objects))
    words = who + conjugate(first, who, Manner(past=past)) + thing
    words += phrase(*d.choose(lexicon.CONJUNCTIONS[:2]))
    how = manner(d, verb, who, past)
    how.fronted, how.pronouns = thing, object_pronoun(thing)
    if verb.complement != "give":
        d.combine("pronoun", verb.english, thing.noun)
        return words + conjugate(verb, who, how)
    if d.chance(0.5):
        return words + conjugate(verb, who, how) + _to_somebody(d)
    how.pronouns += phrase(*d.choose(_TO_PERSON))
    return words + conjugate(verb, who, how)


def giving(d: Draft) -> Phrase:
    """Build an indirect object, as a noun or a pronoun: Paul gives the book to Marie, or to her."""
    who, verb = subject(d, ("person",)), d.choose(_GIVING)
    how = manner(d, verb, who, d.chance(0.5))
    noun = pick_noun(d, [kind for kind in lexicon.KINDS if kind in verb.objects])
    d.combine("object", verb.english, noun)
    thing = noun_phrase(d, noun, negated=how.negation is not None)
    if d.chance(0.5):
        return who + conjugate(verb, who, how) + thing + _to_somebody(d)
    pronouns = (*_TO_PERSON, ("to me", "me"), ("to us", "nous"), ("to you", "vous"))
    to_whom, dative = d.choose(pronouns)
    if (who.person, dative) in (("je", "me"), ("nous", "nous"), ("vous", "vous")):
        to_whom, dative = "to them", "leur"
    to = phrase(to_whom, dative)
    how.pronouns = Phrase([], to.french)
    return who + conjugate(verb, who, how) + thing + Phrase(to.english, [])


def _to_somebody(d: Draft) -> Phrase:
    person = person_name(d) if d.chance(0.5) else noun_phrase(d, d.choose(lexicon.KINDS["person"]))
    return phrase("to", "à") + person


def pronoun_object(d: Draft) -> Phrase:
    """Build a sentence with an object pronoun: Paul la trouve."""
    who, past = subject(d, ("person",)), d.chance(0.4)
    verb = d.choose([v for v in _PLAIN["person"] if "person" in v.objects])
    how = manner(d, verb, who, past)
    meant = [("m", "il"), ("f", "il")]
    if not past or verb.past == "imparfait":  # else the participle would show the gender of *them*
        meant.append(("?", "ils"))
    how.fronted = referring(Phrase(), *d.choose(meant))
    how.pronouns = object_pronoun(how.fronted)
    words = who + conjugate(verb, who, how)
    return words + time(d, past) if d.chance(0.4) else words


def two_clauses(d: Draft) -> Phrase:
    """Build clauses with one subject: the girls are tired because they (elles) played tennis."""
    past = d.chance(0.5)
    if d.chance(0.25):
        noun = pick_noun(d, ("thing", "vehicle", "building", "clothes", "furniture"))
        who = noun_phrase(d, noun, adjectives=())
    else:
        who = subject(d, LIVING)
    words = who + _state_or_action(d, who, past)
    for conjunction in _conjunctions(d):
        again = stand_in(who)
        if conjunction[0] == "because" and who.gender != "?":
            reason = is_adjective(d, again, past, passing=True)
        else:
            reason = _state_or_action(d, again, past)
        words = words + phrase(*conjunction) + again + reason
    return words


def two_sentences(d: Draft) -> Phrase:
    """Build two or three clauses with different subjects."""
    past = d.chance(0.5)
    words = _statement(d, subject(d, LIVING), past)
    for conjunction in _conjunctions(d):
        other = living(d, LIVING) if d.chance(0.6) else person_name(d)
        words = words + phrase(*conjunction) + _statement(d, other, past)
    return words


def _conjunctions(d: Draft) -> list[tuple[str, str]]:
    """Choose one or two different conjunctions."""
    return d.rng.sample(lexicon.CONJUNCTIONS, 1 + d.chance(0.35))


def _state_or_action(d: Draft, who: NounPhrase, past: bool) -> Phrase:
    """Return an attribute or an action, without an object that a pronoun could refer to."""
    if who.kind not in LIVING or (who.gender != "?" and d.chance(0.5)):
        return is_adjective(d, who, past, passing=True)
    verb = d.choose([v for v in _PLAIN[who.kind] if v.complement != "object"])
    return _action(d, who, verb, past, 0.2)


def polysemous(d: Draft) -> Phrase:
    """Build a sentence with a polysemous word and a cue: before or after it, near or far."""
    noun = d.choose(lexicon.SENSES)
    frames = ["adjective"] * bool(noun.adjectives) + ["whole"] * bool(noun.wholes)
    frames += ["attribute"] * bool(noun.adjectives)
    frames += ["subject", "earlier subject", "later subject"] * bool(noun.owners)
    match d.choose(frames):
        case "adjective":  # Paul finds the rusty nail
            who, cue = subject(d, ("person",)), d.choose(noun.adjectives)
            return who + _handles(d, who, noun, d.chance(0.5), [lexicon.ADJECTIVE[cue]])
        case "whole":  # Paul finds the bark of the old tree
            who, cue = subject(d, ("person",)), d.choose(noun.wholes)
            whole = noun_phrase(d, lexicon.NOUN[cue], determiner=d.choose(("the", "this")))
            return who + _handles(d, who, noun, d.chance(0.5)) + phrase("of", "de") + whole
        case "attribute":  # the bank that Paul saw is muddy
            thing, past = noun_phrase(d, noun, determiner="the", adjectives=()), d.chance(0.5)
            verb = d.choose(lexicon.NEUTRAL_VERBS)
            return _that(d, thing, verb, past) + is_adjective(d, thing, past)
        case "subject":  # the banker finds the bank
            owner, past = _owner(d, noun), d.chance(0.5)
            words = owner + _handles(d, owner, noun, past)
            return words + time(d, past) if d.chance(0.3) else words
        case "earlier subject":  # the player was tired when he found the bat
            owner, past = _owner(d, noun), d.chance(0.5)
            words = owner + is_adjective(d, owner, past, passing=True) + _conjunction(d)
            again = stand_in(owner)
            return words + again + _handles(d, again, noun, past)
        case _:  # Paul looked for the key when the pianist was sleeping
            who, past = person_name(d) if d.chance(0.6) else speaker(d), d.chance(0.5)
            owner = _owner(d, noun)
            words = who + _handles(d, who, noun, past) + _conjunction(d)
            return words + owner + _state_or_action(d, owner, past)


def _owner(d: Draft, noun: Noun) -> NounPhrase:
    return noun_phrase(d, lexicon.NOUN[d.choose(noun.owners)])


def _conjunction(d: Draft) -> Phrase:
    return phrase(*d.choose(lexicon.CONJUNCTIONS))


def _handles(
    d: Draft, who: NounPhrase, noun: Noun, past: bool, adjectives: Sequence[Adjective] = ()
) -> Phrase:
    """Return a verb that fits every sense of the noun, with the noun as its object."""
    verb = d.choose(lexicon.NEUTRAL_VERBS)
    how = manner(d, verb, who, past)
    thing = noun_phrase(d, noun, adjectives=adjectives, negated=how.negation is not None)
    return conjugate(verb, who, how) + thing


# Constructions and how many sentences of 120 they build.
_SHARES = (
    (simple, 18), (attribute, 6), (subject_relative, 13), (object_relative, 10), (anaphora, 16),
    (giving, 8), (pronoun_object, 4), (two_clauses, 12), (two_sentences, 9), (polysemous, 24),
)  # fmt: skip
_TICKETS = [build for build, share in _SHARES for _ in range(share)]


class Derivation(NamedTuple):
    """A sentence with its translation, and the combinations of words in it."""

    pair: SentencePair
    combinations: frozenset[tuple[str, str, str]]


def derive(rng: random.Random) -> Derivation:
    """Derive a sentence in which every polysemous word has cues of one sense only."""
    while True:
        d = Draft(rng)
        sentence = d.choose(_TICKETS)(d)
        if all(_is_clear(noun, d.content) for noun in d.senses):
            return Derivation(finish(sentence), frozenset(d.combinations))


def _is_clear(noun: Noun, content: set[str]) -> bool:
    """Return whether there are cues of this sense, and none of the other senses of the word."""
    senses = [sense for sense in lexicon.SENSES if sense.english == noun.english]
    return [sense for sense in senses if sense.cues & content] == [noun]

"""Sentences: each construction builds both languages together.

A subject pronoun always refers to the subject of the previous clause, and an object pronoun to the
object of the previous verb, so that its gender is never ambiguous.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.data.toy_language.clauses import (
    GIVING,
    LIVING,
    PLAIN,
    is_adjective,
    manner,
    pick_verb,
    time,
    verb_phrase,
)
from experiments.data.toy_language.entries import (
    ADJECTIVE,
    ADJECTIVES_OF,
    CONFLICTING_CUES,
    KINDS,
    NEUTRAL_VERBS,
    NOUN,
    SENSES,
    VERB,
    Adjective,
    Noun,
    Verb,
)
from experiments.data.toy_language.nominal import (
    Draft,
    NounPhrase,
    country_phrase,
    living,
    noun_phrase,
    of,
    person_name,
    pick_noun,
    speaker,
    stand_in,
    subject,
)
from experiments.data.toy_language.phrase import Pair, Phrase, finish, phrase
from experiments.data.toy_language.predicate import Manner, conjugate, object_pronoun

CONJUNCTIONS = (("and", "et"), ("but", "mais"), ("because", "parce que"), ("when", "quand"))
# Verbs of the first clause of `anaphora`: Marie buys the apple and eats it.
FIRST_VERBS = tuple(VERB[word] for word in ("buy", "find", "choose", "see"))
_SECOND_VERBS = tuple(
    verb for verb in (*PLAIN["person"], *GIVING)
    if verb not in (*FIRST_VERBS[1:], VERB["build"], VERB["write"])
    and verb.objects & FIRST_VERBS[0].objects
)  # fmt: skip


@dataclass(frozen=True)
class Derivation:
    """A complete pair, and the combinations of words in it."""

    pair: Pair
    combinations: frozenset[tuple[str, str, str]]


def clause(d: Draft, who: NounPhrase, past: bool) -> Phrase:
    """Return a verb phrase for this subject: visits Africa in September."""
    words, how = verb_phrase(d, who, pick_verb(d, who), past=past)
    return words + time(d, past) if how.timely and d.chance(0.3) else words


def simple(d: Draft) -> Phrase:
    """Build a simple sentence: Jane visits Africa in September."""
    return _statement(d, subject(d, LIVING), d.chance(0.5))


def _statement(d: Draft, who: NounPhrase, past: bool) -> Phrase:
    if d.chance(0.12):
        words, how = verb_phrase(d, who, pick_verb(d, who), past=past)
        return (time(d, past) if how.timely else Phrase()) + who.phrase + words
    return who.phrase + clause(d, who, past)


def attribute(d: Draft) -> Phrase:
    """Build a sentence with an attribute: the car is not red."""
    noun = pick_noun(d, [kind for kind in KINDS if ADJECTIVES_OF[kind]])
    who = noun_phrase(d, noun, adjectives=None if d.chance(0.3) else ())
    return who.phrase + is_adjective(d, who, d.chance(0.4))


def subject_relative(d: Draft) -> Phrase:
    """Build agreement over a relative clause: the girls who live near the river are happy."""
    who = living(d, LIVING)
    past = d.chance(0.4)
    link = phrase("who" if who.kind == "person" else "that", "qui")
    words, _ = verb_phrase(d, who, pick_verb(d, who), past=past)
    head = who.phrase + link + words
    return head + (is_adjective(d, who, past) if d.chance(0.6) else clause(d, who, past))


def object_relative(d: Draft) -> Phrase:
    """Build an object relative clause: la pomme que Marie a achetée est rouge."""
    verb = d.choose([v for v in PLAIN["person"] if v.complement == "object"])
    kinds = [k for k in KINDS if k in verb.objects and k not in ("drink", "beverage", "person")]
    if not kinds:
        return simple(d)
    thing = noun_phrase(d, pick_noun(d, kinds), determiner=d.choose(("the", "the", "this")))
    past = d.chance(0.6)
    return _that(d, thing, verb, past) + is_adjective(d, thing, past)


def _that(d: Draft, thing: NounPhrase, verb: Verb, past: bool) -> Phrase:
    """Return a thing with a relative clause: the apple that Marie bought."""
    who = subject(d, ("person",))
    how = manner(d, verb, who, past=past)
    how.fronted = thing
    if thing.noun:
        d.combine("object", verb.english, thing.noun)
    words = who.phrase + conjugate(verb, who, how)
    return thing.phrase + phrase("that", "que") + words


def anaphora(d: Draft) -> Phrase:
    """Build two clauses with an object pronoun: Marie buys the apple and eats it."""
    who, past = subject(d, ("person",)), d.chance(0.6)
    past = past or who.gender == "?"
    verb = d.choose([v for v in _SECOND_VERBS if not past or v.past == "avoir"])
    first = d.choose([v for v in FIRST_VERBS if v.objects & verb.objects and v is not verb])
    thing = _one_of(d, first, sorted(first.objects & verb.objects))
    done = who.phrase + conjugate(first, who, Manner(past=past)) + thing.phrase
    conjunction = phrase(*d.choose(CONJUNCTIONS[:2]))
    how = manner(d, verb, who, past=past)
    how.fronted = thing
    how.pronouns = object_pronoun(thing)
    if verb.complement != "give":
        d.combine("pronoun", verb.english, thing.noun)
        return done + conjunction + conjugate(verb, who, how)
    if d.chance(0.5):
        return done + conjunction + conjugate(verb, who, how) + _to(d)
    to_whom, dative = d.choose((("him", "lui"), ("her", "lui"), ("them", "leur")))
    to = phrase(f"to {to_whom}", dative)
    how.pronouns = how.pronouns + to
    return done + conjunction + conjugate(verb, who, how)


def _one_of(d: Draft, verb: Verb, kinds: Sequence[str]) -> NounPhrase:
    noun = pick_noun(d, (d.choose(kinds),))
    d.combine("object", verb.english, noun)
    return noun_phrase(d, noun)


def _to(d: Draft) -> Phrase:
    person = person_name(d) if d.chance(0.5) else noun_phrase(d, d.choose(KINDS["person"]))
    return phrase("to", "à") + person.phrase


def giving(d: Draft) -> Phrase:
    """Build an indirect object, as a noun or a pronoun: Paul gives the book to Marie, or to her."""
    who, verb = subject(d, ("person",)), d.choose(GIVING)
    how = manner(d, verb, who, past=d.chance(0.5))
    noun = pick_noun(d, [kind for kind in KINDS if kind in verb.objects])
    d.combine("object", verb.english, noun)
    thing = noun_phrase(d, noun, negated=how.negation is not None).phrase
    if d.chance(0.5):
        return who.phrase + conjugate(verb, who, how) + thing + _to(d)
    to_whom, dative = d.choose((("him", "lui"), ("her", "lui"), ("them", "leur"), ("me", "me"),
                                ("us", "nous"), ("you", "vous")))  # fmt: skip
    if {who.person, dative} in ({"je", "me"}, {"nous"}, {"vous"}):
        to_whom, dative = "them", "leur"
    to = phrase(f"to {to_whom}", dative)
    how.pronouns = Phrase([], to.french)
    return who.phrase + conjugate(verb, who, how) + thing + Phrase(to.english, [])


def pronoun_object(d: Draft) -> Phrase:
    """Build a sentence with an object pronoun: Paul la trouve."""
    who, past = subject(d, ("person",)), d.chance(0.4)
    verb = d.choose([v for v in PLAIN["person"] if "person" in v.objects])
    how = manner(d, verb, who, past=past)
    pronouns = [("him", "m", "il"), ("her", "f", "il")]
    if not how.past or verb.past == "imparfait":
        pronouns.append(("them", "?", "ils"))
    _, gender, person = d.choose(pronouns)
    how.fronted = NounPhrase(Phrase(), gender, person)
    how.pronouns = object_pronoun(how.fronted)
    words = who.phrase + conjugate(verb, who, how)
    return words + time(d, how.past) if d.chance(0.4) else words


def two_clauses(d: Draft) -> Phrase:
    """Build clauses with one subject: the girls are tired because they (elles) played tennis."""
    past = d.chance(0.5)
    if d.chance(0.25):
        noun = pick_noun(d, ("thing", "vehicle", "building", "clothes", "furniture"))
        who = noun_phrase(d, noun, adjectives=())
    else:
        who = subject(d, LIVING)
    words = who.phrase + _anything(d, who, past)
    for word, mot in d.rng.sample(CONJUNCTIONS, 1 + d.chance(0.35)):
        again = stand_in(who)
        reason = word == "because" and who.gender != "?"
        what = is_adjective(d, again, past, passing=True) if reason else _anything(d, again, past)
        words = words + phrase(word, mot) + again.phrase + what
    return words


def _anything(d: Draft, who: NounPhrase, past: bool) -> Phrase:
    """Return an attribute or an action, without an object that a pronoun could refer to."""
    inert = who.kind not in LIVING
    if inert or (who.gender != "?" and d.chance(0.5)):
        return is_adjective(d, who, past, passing=True)
    verbs = [v for v in PLAIN[who.kind] if v.complement != "object"]
    words, how = verb_phrase(d, who, d.choose(verbs), past=past)
    return words + time(d, past) if how.timely and d.chance(0.2) else words


def two_sentences(d: Draft) -> Phrase:
    """Build two or three clauses with different subjects."""
    past = d.chance(0.5)
    words = _statement(d, subject(d, LIVING), past)
    for word, mot in d.rng.sample(CONJUNCTIONS, 1 + d.chance(0.35)):
        other = living(d, LIVING) if d.chance(0.6) else person_name(d)
        words = words + phrase(word, mot) + _statement(d, other, past)
    return words


def polysemous(d: Draft) -> Phrase:
    """Build a sentence with a polysemous word and a cue: before or after it, near or far."""
    noun = d.choose(SENSES)
    sense = noun.sense
    frames = [_cued_by_adjective] * bool(sense.adjectives) + [_cued_by_whole] * bool(sense.wholes)
    frames += [_cued_by_attribute] * bool(sense.adjectives)
    frames += [_cued_by_owner, _cued_from_afar, _cued_later] * bool(sense.owners)
    return d.choose(frames)(d, noun)


def _handles(
    d: Draft, who: NounPhrase, noun: Noun, past: bool, adjectives: Sequence[Adjective] = ()
) -> Phrase:
    """Return a verb that fits every sense of the noun, with the noun as its object."""
    verb = d.choose(NEUTRAL_VERBS)
    how = manner(d, verb, who, past=past)
    thing = noun_phrase(d, noun, adjectives=adjectives, negated=how.negation is not None)
    return conjugate(verb, who, how) + thing.phrase


def _cued_by_adjective(d: Draft, noun: Noun) -> Phrase:
    """Use an adjective as cue: Paul finds the rusty nail."""
    who = subject(d, ("person",))
    adjectives = (ADJECTIVE[d.choose(noun.sense.adjectives)],)
    return who.phrase + _handles(d, who, noun, d.chance(0.5), adjectives)


def _cued_by_whole(d: Draft, noun: Noun) -> Phrase:
    """Use the whole as cue: Paul finds the bark of the old tree."""
    who = subject(d, ("person",))
    whole = noun_phrase(d, NOUN[d.choose(noun.sense.wholes)], determiner=d.choose(("the", "this")))
    return who.phrase + _handles(d, who, noun, d.chance(0.5)) + of(whole)


def _cued_by_owner(d: Draft, noun: Noun) -> Phrase:
    """Use the subject as cue: the banker finds the bank."""
    who = noun_phrase(d, NOUN[d.choose(noun.sense.owners)])
    past = d.chance(0.5)
    done = who.phrase + _handles(d, who, noun, past)
    return done + time(d, past) if d.chance(0.3) else done


def _cued_by_attribute(d: Draft, noun: Noun) -> Phrase:
    """Use a final attribute as cue: the bank that Paul saw is muddy."""
    thing, past = noun_phrase(d, noun, determiner="the", adjectives=()), d.chance(0.5)
    return _that(d, thing, d.choose(NEUTRAL_VERBS), past) + is_adjective(d, thing, past)


def _cued_from_afar(d: Draft, noun: Noun) -> Phrase:
    """Use the subject of the previous clause as cue: the player was tired when he found the bat."""
    who, past = noun_phrase(d, NOUN[d.choose(noun.sense.owners)]), d.chance(0.5)
    first = who.phrase + is_adjective(d, who, past, passing=True) + phrase(*d.choose(CONJUNCTIONS))
    again = stand_in(who)
    return first + again.phrase + _handles(d, again, noun, past)


def _cued_later(d: Draft, noun: Noun) -> Phrase:
    """Use the next clause as cue: Paul looked for the key when the pianist was sleeping."""
    who, past = person_name(d) if d.chance(0.6) else speaker(d), d.chance(0.5)
    owner = noun_phrase(d, NOUN[d.choose(noun.sense.owners)])
    first = who.phrase + _handles(d, who, noun, past)
    return first + phrase(*d.choose(CONJUNCTIONS)) + owner.phrase + _anything(d, owner, past)


CONSTRUCTIONS = (
    (simple, 18), (attribute, 6), (subject_relative, 13), (object_relative, 10), (anaphora, 16),
    (giving, 8), (pronoun_object, 4), (two_clauses, 12), (two_sentences, 9), (polysemous, 24),
)  # fmt: skip
_TICKETS = tuple(build for build, share in CONSTRUCTIONS for _ in range(share))


def _senses_are_clear(d: Draft) -> bool:
    return all(
        noun.sense.cues & d.content and not CONFLICTING_CUES[noun] & d.content for noun in d.senses
    )


def derive(rng: random.Random) -> Derivation:
    """Derive a sentence in which every polysemous word has cues of one sense only."""
    while True:
        d = Draft(rng)
        sentence = d.choose(_TICKETS)(d)
        if _senses_are_clear(d):
            return Derivation(finish(sentence), frozenset(d.combinations))


def famous() -> tuple[Pair, Pair]:
    """Return two well-known example sentences, which are always in the test split."""
    jane = NounPhrase(phrase("Jane", "Jane"), "f", "il")
    visits = conjugate(VERB["visit"], jane, Manner())
    africa = country_phrase("Africa", "object")
    first = jane.phrase + visits + africa + phrase("in", "en") + phrase("September", "septembre")

    d = Draft(random.Random(0))
    looks = (ADJECTIVE["fluffy"], ADJECTIVE["blue"])
    creature = noun_phrase(d, NOUN["creature"], determiner="a", plural=False, adjectives=looks)
    forest = noun_phrase(
        d, NOUN["forest"], determiner="the", plural=False, adjectives=(ADJECTIVE["verdant"],)
    )  # fmt: skip
    roamed = conjugate(VERB["roam"], creature, Manner(past=True))
    second = creature.phrase + roamed + forest.phrase
    return finish(first), finish(second)

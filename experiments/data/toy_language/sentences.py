"""Sentences: verbs with their complements, clauses of them, and sentences of clauses.

Each construction builds both languages together. A subject pronoun always refers to the subject of
the previous clause, and an object pronoun to the object of the previous verb, so that its gender is
never ambiguous.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from experiments.data.tokenizers import SentencePair
from experiments.data.toy_language import lexicon
from experiments.data.toy_language.lexicon import Noun, Verb
from experiments.data.toy_language.phrases import (
    COUNTLESS,
    Draft,
    NounPhrase,
    Phrase,
    definite,
    english,
    finish,
    french,
    object_pronoun,
    phrase,
    referring,
    stand_in,
)

LIVING = ("person", "animal", "bird", "creature")
_GIVING = ("give", "show", "send", "lend")
_MOVING = ("arrive", "leave", "fall", "stay", "go", "return", "come")
_STATES = ("love", "know", "live")
_SPOKEN = ("love", "see", "eat", "buy", "sit", "sit", "sit")  # with I, we and you
_NEUTRAL = ("find", "look", "admire", "draw", "see", "choose")  # fit every sense of a noun
_NOT_PREDICATED = ("new", "long", "young")

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
    completed = past and verb.past in ("avoir", "être")
    if d.chance(0.2):
        if verb.english == "be":
            fitting = ("not", "not", "no longer")
        elif verb.english in _STATES:  # "never knows" and "never loves" are unusual
            fitting = ("not", "no longer")
        elif completed or verb.past == "être":
            fitting = ("not", "never")
        else:
            fitting = ("not", "never", "no longer")
        how.negation = d.choose(fitting)
    elif not completed and verb.english not in (*_STATES, "be") and d.chance(0.12):
        how.adverb = d.choose(lexicon.TABLES["adverb"])
    # Of a speaker, participles are masculine: je suis allé.
    easy = verb.past != "imparfait" if past else verb.english in _SPOKEN
    unspoken = (who.gender == "?" and not easy) or (past and not verb.english_past)
    if verb.past == "posture" or verb.english == "be":  # "wants to sit" would be *s'asseoir*
        return how
    if unspoken or (who.kind == "person" and d.chance(0.1)):
        modal = "want" if verb.english in _STATES else d.choose(("want", "can"))
        how.modal = lexicon.VERBS[modal]
        how.adverb = ("", "")
        if how.negation == "never":
            how.negation = "not"
    return how


def conjugate(verb: Verb, subject: NounPhrase, how: Manner) -> Phrase:
    """Return the verb in agreement with its subject, with negation, adverb, modal and pronouns.

    English: negation, adverb, verb, infinitive, pronouns; *never eats it*, *often wants to eat it*.
    French: ne, pronouns, verb, negation, adverb, participle; *ne l'a jamais mangée*. Pronouns
    follow a modal: *veut souvent la manger*. A posture is a state: *sat* is *était assis*.
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
    auxiliary, tense = "", lexicon.imparfait if how.past else lexicon.present
    if finite.past == "posture":
        auxiliary = "être"
    elif how.past and finite.past != "imparfait":
        auxiliary, tense = finite.past, lexicon.present
    translation = french(tense(auxiliary or finite.french)[subject.person], meaning)
    if not how.modal:
        translation = how.pronouns.french + translation
    if how.negation:
        closing = french(lexicon.FORMS["negation"][how.negation][0], negation)
        translation = french("ne", negation) + translation + closing
    translation = translation + adverb.french
    if auxiliary:  # the participle agrees with the subject (être) or a preceding object (avoir)
        agreeing = subject if auxiliary == "être" else how.fronted
        agreement = (agreeing.gender, agreeing.plural) if agreeing else ()
        translation += french(lexicon.participle(finite.french, *agreement), meaning)
    if how.modal:
        translation += how.pronouns.french + french(verb.french, infinitive)
    return Phrase(words + infinitive + how.pronouns.english, translation)


def _english_verb(verb: Verb, subject: NounPhrase, how: Manner) -> tuple[list, list]:
    """Return the words of the negation, with its auxiliary, and of the verb; *cannot* has both."""
    if verb.english == "be":
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


def _plain_verbs(kind: str) -> list[Verb]:
    """Return the verbs of a class of subjects, without an indirect object or a second verb."""
    verbs = (verb for verb in lexicon.VERBS.values() if kind in verb.subjects)
    return [verb for verb in verbs if verb.complement not in ("give", "modal")]


def pick_verb(d: Draft, who: NounPhrase) -> Verb:
    """Choose a verb for the subject; I, we and you prefer `_SPOKEN`."""
    if who.kind == "person" and d.chance(0.15):  # their participles have the most forms
        return lexicon.VERBS[d.choose(_MOVING)]
    if who.gender == "?" and d.chance(0.6):
        return lexicon.VERBS[d.choose(_SPOKEN)]
    return d.choose(_plain_verbs(who.kind))


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
            return d.destination(verb.complement)
        case "place":
            return d.place()
        case "where":
            return d.place() if d.chance(0.6) else Phrase()
        case "on":
            if d.chance(0.25):
                return phrase("on", "sur") + _part(d, lexicon.BY_FRENCH["rive"], "the")
            noun = d.pick_noun((d.choose(("seat", "seat", "furniture", "shore")),))
            d.combine("place", "on", noun)
            where = d.noun_phrase(noun, determiner=d.choose(("the", "the", "the", "a", "this")))
            return phrase("on", "sur") + where
        case "water":
            noun, determiner = d.pick_noun(["water"]), d.choose(("the", "a", "this"))
            where = d.noun_phrase(noun, determiner=determiner, plural=False)
            return phrase("in", "dans") + where
        case "play":
            english_name, article, name, preposition = d.choose(lexicon.TABLES["played"])
            d.combinations.add(("play", "play", english_name))
            d.content.add(english_name.split()[-1])
            return Phrase([], french(preposition)) + definite(english_name, article, name)
        case "none":
            return Phrase()
    if "country" in verb.objects and d.chance(0.35):
        return d.country("object")
    kinds = sorted(verb.objects - {"country"})
    if "person" in kinds and d.chance(0.3):
        return d.person_name(alone=True)  # its *and* would be ambiguous before a clause
    thing = _direct_object(d, verb, kinds, negated)
    if verb.english in ("eat", "drink") and d.chance(0.4):
        meal = phrase(*d.choose(lexicon.TABLES["meal"]))
        return thing + phrase("for", "à") + Phrase([], french("le")) + meal
    return thing


def _direct_object(d: Draft, verb: Verb, kinds: Sequence[str], negated: bool = False) -> NounPhrase:
    """Choose a direct object of one of the classes, each equally probable."""
    noun = d.pick_noun((d.choose(kinds),))
    d.combine("object", verb.english, noun)
    determiner = "" if noun.kind in COUNTLESS and d.chance(0.35) else None
    if verb.english in _STATES:
        determiner = d.choose(("the", "the", "this"))
    return d.noun_phrase(noun, determiner=determiner, negated=negated)


def time(d: Draft, past: bool) -> Phrase:
    """Choose a time: in September, every morning, yesterday."""
    if d.chance(0.3):
        return phrase("in", "en") + phrase(*d.choose(lexicon.TABLES["month"]))
    tenses = ("any", "past" if past else "present")
    fitting = [words for *words, tense in lexicon.TABLES["time"] if tense in tenses]
    return phrase(*d.choose(fitting))


def is_adjective(d: Draft, who: NounPhrase, past: bool, *, passing: bool = False) -> Phrase:
    """Return "is happy" in agreement with the subject; `passing` excludes sizes and origins."""
    fitting = [
        a for a in lexicon.adjectives_of(who.kind)
        if a.english not in d.content and a.english not in _NOT_PREDICATED
        and (a.order == "quality" or not passing)
    ]  # fmt: skip
    if who.noun and who.noun.cues:  # the attribute is its cue, unless it has another one
        cues = [lexicon.ADJECTIVES[word] for word in who.noun.adjectives]
        fitting = cues + fitting * bool(who.noun.cues & d.content)
    be = lexicon.VERBS["be"]
    how, adjective = manner(d, be, who, past), d.choose(fitting)
    d.combine("adjective", adjective.english, who.noun)
    return conjugate(be, who, how) + d.agreeing(adjective, who.gender, who.plural)


def simple(d: Draft) -> Phrase:
    """Build a simple sentence: Jane visits Africa in September."""
    return _statement(d, d.subject(LIVING), d.chance(0.5))


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
    """Build a sentence with an attribute: the car is not red, I was tired."""
    if d.chance(0.3):
        who, past = d.speaker(), d.chance(0.6)
        return who + is_adjective(d, who, past)
    noun = d.choose([noun for noun in lexicon.NOUNS.values() if lexicon.adjectives_of(noun.kind)])
    who = d.noun_phrase(noun, adjectives=None if d.chance(0.3) else ())
    return who + is_adjective(d, who, d.chance(0.4))


def subject_relative(d: Draft) -> Phrase:
    """Build agreement over a relative clause: the girls who live near the river are happy."""
    who, past = d.living(LIVING), d.chance(0.4)
    link = phrase("who" if who.kind == "person" else "that", "qui")
    head = who + link + verb_phrase(d, who, pick_verb(d, who), past)[0]
    if d.chance(0.6):
        return head + is_adjective(d, who, past)
    return head + _action(d, who, pick_verb(d, who), past, 0.3)


def object_relative(d: Draft) -> Phrase:
    """Build an object relative clause: la pomme que Marie a achetée est rouge."""
    verb = d.choose([v for v in _plain_verbs("person") if v.complement == "object"])
    kinds = verb.objects - {"drink", "beverage", "money", "person"}
    fitting = [noun for noun in lexicon.NOUNS.values() if noun.kind in kinds]
    if not fitting:
        return simple(d)
    thing = d.noun_phrase(d.choose(fitting), determiner=d.choose(("the", "the", "this")))
    past = d.chance(0.6)
    return _that(d, thing, verb, past) + is_adjective(d, thing, past)


def _that(d: Draft, thing: NounPhrase, verb: Verb, past: bool) -> Phrase:
    """Return a thing with a relative clause: the apple that Marie bought."""
    who = d.subject(("person",))
    how = manner(d, verb, who, past)
    how.fronted = thing
    d.combine("object", verb.english, thing.noun)
    return thing + phrase("that", "que") + who + conjugate(verb, who, how)


_TO_PERSON = (("to him", "lui"), ("to her", "lui"), ("to them", "leur"))


def anaphora(d: Draft) -> Phrase:
    """Build two clauses with an object pronoun: Marie buys the apple and eats it."""
    who, past = d.subject(("person",)), d.chance(0.6)
    past = past or who.gender == "?"
    verb = d.choose([
        v for v in lexicon.VERBS.values()
        if v.objects & lexicon.VERBS["buy"].objects and "person" in v.subjects
        and v.english not in ("find", "choose", "see", "build", "write")
        and (not past or v.past == "avoir")
    ])  # fmt: skip
    first_verbs = [lexicon.VERBS[word] for word in ("buy", "find", "choose", "see")]
    first = d.choose([v for v in first_verbs if v.objects & verb.objects and v is not verb])
    thing = _direct_object(d, first, sorted(first.objects & verb.objects))
    words = who + conjugate(first, who, Manner(past=past)) + thing
    words += phrase(*d.choose(lexicon.TABLES["conjunction"][:2]))
    how = manner(d, verb, who, past)
    how.fronted, how.pronouns, rest = thing, object_pronoun(thing), Phrase()
    if verb.complement != "give":
        d.combine("pronoun", verb.english, thing.noun)
    elif d.chance(0.5):
        rest = _to_somebody(d)
    else:
        how.pronouns += phrase(*d.choose(_TO_PERSON))
    return words + conjugate(verb, who, how) + rest


def giving(d: Draft) -> Phrase:
    """Build an indirect object, as a noun or a pronoun: Paul gives the book to Marie, or to her."""
    who, verb = d.subject(("person",)), lexicon.VERBS[d.choose(_GIVING)]
    how = manner(d, verb, who, d.chance(0.5))
    noun = d.choose([noun for noun in lexicon.NOUNS.values() if noun.kind in verb.objects])
    d.combine("object", verb.english, noun)
    thing = d.noun_phrase(noun, negated=how.negation is not None)
    if d.chance(0.5):
        return who + conjugate(verb, who, how) + thing + _to_somebody(d)
    pronouns = (*_TO_PERSON, ("to me", "me"), ("to us", "nous"), ("to you", "vous"))
    to_whom, dative = d.choose(pronouns)
    if (who.person, dative) in (("je", "me"), ("nous", "nous"), ("vous", "vous")):
        to_whom, dative = "to them", "leur"
    to = phrase(to_whom, dative)
    how.pronouns = Phrase([], to.french)
    return who + conjugate(verb, who, how) + thing + Phrase(to.english)


def _to_somebody(d: Draft) -> Phrase:
    somebody = d.person_name() if d.chance(0.5) else d.noun_phrase(d.pick_noun(["person"]))
    return phrase("to", "à") + somebody


def pronoun_object(d: Draft) -> Phrase:
    """Build a sentence with an object pronoun: Paul la trouve."""
    who, past = d.subject(("person",)), d.chance(0.4)
    verb = d.choose([v for v in _plain_verbs("person") if "person" in v.objects])
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
        noun = d.pick_noun(("thing", "vehicle", "building", "clothes", "furniture"))
        who = d.noun_phrase(noun, adjectives=())
    else:
        who = d.subject(LIVING)
    words = who + _state_or_action(d, who, past)
    for conjunction in _conjunctions(d):
        again = stand_in(who)
        if conjunction[0] == "because":
            reason = is_adjective(d, again, past, passing=True)
        else:
            reason = _state_or_action(d, again, past)
        words = words + phrase(*conjunction) + again + reason
    return words


def two_sentences(d: Draft) -> Phrase:
    """Build two or three clauses with different subjects."""
    past = d.chance(0.5)
    words = _statement(d, d.subject(LIVING), past)
    for conjunction in _conjunctions(d):
        other = d.living(LIVING) if d.chance(0.6) else d.person_name()
        words = words + phrase(*conjunction) + _statement(d, other, past)
    return words


def _conjunctions(d: Draft) -> list[tuple[str, str]]:
    return d.rng.sample(lexicon.TABLES["conjunction"], 1 + d.chance(0.35))


def _state_or_action(d: Draft, who: NounPhrase, past: bool) -> Phrase:
    """Return an attribute or an action, without an object that a pronoun could refer to."""
    if who.kind not in LIVING or d.chance(0.5):
        return is_adjective(d, who, past, passing=True)
    verb = d.choose([v for v in _plain_verbs(who.kind) if v.complement != "object"])
    return _action(d, who, verb, past, 0.2)


def errand(d: Draft, place: str = "") -> Phrase:
    """Build a purpose: I went to the bank to deposit money; `place` is French."""
    purposes = lexicon.FORMS["purpose"]
    place = place or d.choose([*purposes])
    who, go, noun = d.subject(("person",)), lexicon.VERBS["go"], lexicon.BY_FRENCH[place]
    words = who + conjugate(go, who, manner(d, go, who, d.chance(0.6)))
    if who.noun:
        d.combinations.add(("subject", who.noun.english, go.english))
    d.combine("place", "to", noun)
    words += phrase("to", "à") + d.noun_phrase(noun, determiner="the", plural=False, adjectives=())
    verb = lexicon.VERBS[d.choose(purposes[place][0].split("/"))]
    words += phrase("to", "pour") + phrase(f"{verb.english} {verb.particle}", verb.french)
    return words + _complement(d, verb, False)


def company(d: Draft) -> Phrase:
    """Build a sentence about a company: Apple released a new phone."""
    noun = d.pick_noun(("company",))
    who = referring(phrase(noun.english, noun.french), noun.gender, "il", noun)
    return _statement(d, who, d.chance(0.6))


def question(d: Draft) -> Phrase:
    """Build a question about a person, with inversion in French: who am I, where was she."""
    who, past = d.speaker(), d.chance(0.4)
    be = conjugate(lexicon.VERBS["be"], who, Manner(past=past))
    inverted = be.english + who.english
    verb = french(f"{be.french[0].text}-{who.french[0].text}", inverted)
    words = phrase(*d.choose((("who", "qui"), ("where", "où")))) + Phrase(inverted, verb)
    return words + time(d, past) if d.chance(0.7) else words


def two_senses(d: Draft) -> Phrase:
    """Build two clauses with a word in two senses, such as a bank to which people go."""
    words = [lexicon.BY_FRENCH[place].english for place in lexicon.FORMS["purpose"]]
    first = d.choose([noun for noun in lexicon.SENSES if noun.english in words])
    others = [noun for noun in lexicon.SENSES if noun.english == first.english and noun != first]
    clause = polysemous(d, first) + _conjunction(d)
    d.close_clause()
    return clause + polysemous(d, d.choose(others))


def polysemous(d: Draft, noun: Noun | None = None) -> Phrase:
    """Build a sentence with a polysemous word and a cue: before or after it, near or far.

    With a given noun, it is one clause, and its cue belongs to the noun.
    """
    subjects = [] if noun else ["subject", "earlier subject", "later subject"]
    noun = noun or d.choose(lexicon.SENSES)
    frames = ["adjective", "attribute"] * bool(noun.adjectives)
    frames += ["whole", "part"] * bool(noun.wholes)
    frames += subjects * bool(noun.owners)
    frames += ["errand"] * (noun.french in lexicon.FORMS["purpose"])
    match d.choose(frames):
        case "adjective" | "whole" as cue:  # Paul finds the rusty nail, the bark of the old tree
            who = d.subject(("person",))
            return who + _handles(d, who, noun, d.chance(0.5), cue)
        case "part":  # the bank of the river was dirty
            thing = _part(d, noun)
            return thing + is_adjective(d, thing, d.chance(0.5))
        case "errand":  # Paul goes to the bank to deposit money
            return errand(d, noun.french)
        case "attribute":  # the bank that Paul saw is muddy
            thing, past = d.noun_phrase(noun, determiner="the", adjectives=()), d.chance(0.5)
            verb = lexicon.VERBS[d.choose(_NEUTRAL)]
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
            who, past = d.person_name() if d.chance(0.6) else d.speaker(), d.chance(0.5)
            owner = _owner(d, noun)
            words = who + _handles(d, who, noun, past) + _conjunction(d)
            return words + owner + _state_or_action(d, owner, past)


def _owner(d: Draft, noun: Noun) -> NounPhrase:
    return d.noun_phrase(lexicon.NOUNS[d.choose(noun.owners)])


def _conjunction(d: Draft) -> Phrase:
    return phrase(*d.choose(lexicon.TABLES["conjunction"]))


def _part(d: Draft, noun: Noun, determiner: str | None = None, negated: bool = False) -> NounPhrase:
    """Return a part of a whole, which is its cue: the bank of the old river, the river bank."""
    whole = lexicon.NOUNS[d.choose(noun.wholes)]
    one = whole if d.chance(0.4) else None
    thing = d.noun_phrase(noun, determiner=determiner, adjectives=(), negated=negated, whole=one)
    if one:
        return thing
    of = phrase("of", "de") + d.noun_phrase(whole, determiner=d.choose(("the", "this")))
    return referring(thing + of, thing.gender, thing.person, noun)


def _handles(d: Draft, who: NounPhrase, noun: Noun, past: bool, cue: str = "") -> Phrase:
    """Return a verb that fits every sense of the noun, with the noun, and a cue, as its object."""
    verb = lexicon.VERBS[d.choose(_NEUTRAL)]
    how = manner(d, verb, who, past)
    if cue == "whole":
        return conjugate(verb, who, how) + _part(d, noun, negated=bool(how.negation))
    adjectives = [lexicon.ADJECTIVES[d.choose(noun.adjectives)]] if cue == "adjective" else []
    thing = d.noun_phrase(noun, adjectives=adjectives, negated=bool(how.negation))
    return conjugate(verb, who, how) + thing


# Constructions, as often as they build one of 133 sentences.
_CONSTRUCTIONS = (
    18 * [simple] + 6 * [attribute] + 13 * [subject_relative] + 10 * [object_relative]
    + 16 * [anaphora] + 8 * [giving] + 4 * [pronoun_object] + 12 * [two_clauses]
    + 9 * [two_sentences] + 24 * [polysemous] + 4 * [errand] + 3 * [company] + 2 * [two_senses]
    + 4 * [question]
)  # fmt: skip


def derive(rng: random.Random) -> tuple[SentencePair, set[tuple[str, str, str]]]:
    """Derive a sentence with its translation, and the combinations of words in it.

    Every polysemous word has cues of one sense only, in the sentence or in its clause.
    """
    while True:
        d = Draft(rng)
        sentence = d.choose(_CONSTRUCTIONS)(d)
        if d.is_unambiguous:
            return finish(sentence), d.combinations

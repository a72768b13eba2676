"""Clauses: a verb with tense, negation, adverb, pronouns and complements, or an attribute."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from experiments.data.toy_language import lexicon
from experiments.data.toy_language.lexicon import Verb, imparfait, participle, present
from experiments.data.toy_language.nouns import (
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
from experiments.data.toy_language.phrase import English, Phrase, definite, english, french, phrase

LIVING = ("person", "animal", "bird", "creature")
# Verbs by the class of the subject, without those that need an indirect object or a second verb.
PLAIN = {
    kind: [v for v in lexicon.VERBS if kind in v.subjects and v.complement not in ("give", "modal")]
    for kind in LIVING
}
GIVING = [verb for verb in lexicon.VERBS if verb.complement == "give"]
_MOVING = [verb for verb in lexicon.VERBS if verb.past == "être"]
_MODALS = [verb for verb in lexicon.VERBS if verb.complement == "modal"]
_NOT_PREDICATED = ("new", "long", "young")

NEGATIONS = {"not": "pas", "never": "jamais", "no longer": "plus"}
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


def manner(d: Draft, verb: Verb, who: NounPhrase, *, past: bool) -> Manner:
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
        form = present(finite.past)[subject.person]
    else:
        form = (imparfait if how.past else present)(finite.french)[subject.person]
    translation = french(form, meaning)
    if not how.modal:
        translation = how.pronouns.french + translation
    if how.negation:
        closing = french(NEGATIONS[how.negation], negation)
        translation = french("ne", negation) + translation + closing
    translation = translation + adverb.french
    if is_compound:
        translation += french(_participle(finite, subject, how), meaning)
    if how.modal:
        translation += how.pronouns.french + french(verb.french, infinitive)
    return Phrase(words + infinitive + how.pronouns.english, translation)


def _english_verb(
    verb: Verb, subject: NounPhrase, how: Manner
) -> tuple[list[English], list[English]]:
    """Return the negation with its auxiliary, and the verb, which *cannot* contains."""
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
        return participle(verb.french)
    return participle(verb.french, agrees_with.gender, agrees_with.plural)


def pick_verb(d: Draft, who: NounPhrase) -> Verb:
    """Choose a verb for the subject; I, we and you prefer `SPOKEN_VERBS`."""
    if who.kind == "person" and d.chance(0.15):  # their participles have the most forms
        return d.choose(_MOVING)
    if who.gender == "?" and d.chance(0.6):
        return d.choose(lexicon.SPOKEN_VERBS)
    return d.choose(PLAIN[who.kind])


def verb_phrase(d: Draft, who: NounPhrase, verb: Verb, *, past: bool) -> tuple[Phrase, Manner]:
    """Return the verb with its complement, and its manner."""
    how = manner(d, verb, who, past=past)
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
    determiners = ("the", "the", "this") if verb in lexicon.STATES else None
    return direct_object(d, verb, kinds, determiners=determiners, negated=negated)


def direct_object(
    d: Draft,
    verb: Verb,
    kinds: Sequence[str],
    *,
    determiners: Sequence[str] | None = None,
    negated: bool = False,
) -> NounPhrase:
    """Choose a direct object of one of the classes, each equally probable."""
    noun = pick_noun(d, (d.choose(kinds),))
    d.combine("object", verb.english, noun)
    determiner = d.choose(determiners) if determiners else None
    return noun_phrase(d, noun, determiner=determiner, negated=negated)


def time(d: Draft, past: bool) -> Phrase:
    """Choose a time: in September, every morning, yesterday."""
    if d.chance(0.3):
        return phrase("in", "en") + phrase(*d.choose(lexicon.MONTHS))
    fitting = [
        words for *words, tense in lexicon.TIMES if tense in ("any", "past" if past else "present")
    ]
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
    how = manner(d, lexicon.BE, who, past=past)
    return conjugate(lexicon.BE, who, how) + predicate_adjective(d, d.choose(fitting), who)

"""Verb groups: tense, negation, adverbs, clitics, participles."""

from dataclasses import dataclass, field

from experiments.data.toy_language.entries import Verb
from experiments.data.toy_language.morphology import (
    english_plural,
    imparfait,
    participle,
    present,
)
from experiments.data.toy_language.nominal import NounPhrase
from experiments.data.toy_language.phrase import English, French, Phrase, english, french, phrase

NEGATIONS = {"not": "pas", "never": "jamais", "no longer": "plus"}
BE = {"je": "am", "il": "is", "nous": "are", "vous": "are", "ils": "are"}
BE_PAST = {"je": "was", "il": "was", "nous": "were", "vous": "were", "ils": "were"}


@dataclass
class Manner:
    """Tense, negation, adverb, modal and pronouns of a verb."""

    past: bool = False
    negation: str | None = None
    adverb: tuple[str, str] | None = None
    modal: Verb | None = None
    pronouns: Phrase = field(default_factory=Phrase)  # after the English verb, before the French
    fronted: NounPhrase | None = None  # a direct object before the French verb

    @property
    def timely(self) -> bool:
        """Whether a time may be added: not after *never*, *no longer* or *often*."""
        return self.adverb is None and self.negation in (None, "not")


def object_pronoun(meant: NounPhrase) -> Phrase:
    """Return it, him, her or them for a noun phrase of the same sentence."""
    if meant.plural:
        return phrase("them", "les")
    if meant.kind == "person":
        return phrase("her", "la") if meant.gender == "f" else phrase("him", "le")
    return phrase("it", "la" if meant.gender == "f" else "le")


def _english_verb(verb: Verb, subject: NounPhrase, how: Manner) -> tuple[list, list, list]:
    """Return the auxiliary and negation, the verb, and its particle."""
    finite = how.modal or verb
    third = subject.person == "il" and finite.english != "can"
    before: list[English] = []
    if how.negation == "not" and finite.english == "can":
        before = english("could not" if how.past else "cannot")
        shown = []
    elif how.negation == "not":
        before = english(("did" if how.past else "does" if third else "do") + " not")
        shown = english(finite.english)
    else:
        before = english(how.negation or "")
        inflected = english_plural(finite.english) if third else finite.english
        shown = english(finite.english_past if how.past else inflected)
    return before, shown, english(finite.particle)


def _be(subject: NounPhrase, how: Manner) -> Phrase:
    finite = english((BE_PAST if how.past else BE)[subject.person])
    forms = imparfait("être") if how.past else present("être")
    around = english(how.negation or "")
    adverb = phrase(*how.adverb) if how.adverb else Phrase()
    words = french(forms[subject.person], finite)
    if how.negation:
        words = french("ne", around) + words + french(NEGATIONS[how.negation], around)
    return Phrase(finite + around + adverb.english, words + adverb.french)


def conjugate(verb: Verb, subject: NounPhrase, how: Manner) -> Phrase:
    """Return the verb in agreement with its subject, with negation, adverb, modal and pronouns."""
    if verb.french == "être":
        return _be(subject, how)
    finite = how.modal or verb
    before, shown, particle = _english_verb(verb, subject, how)
    negators = before if how.negation else []
    meaning = [*shown, *particle] or before
    infinitive = english(f"{verb.english} {verb.particle}") if how.modal else []
    compound = how.past and finite.past != "imparfait"
    if compound:
        auxiliary = present(finite.past)[subject.person]
        inflected = french(auxiliary, meaning)
        rest = french(_participle(finite, subject, how), meaning)
    else:
        tense = imparfait if how.past else present
        inflected = french(tense(finite.french)[subject.person], meaning)
        rest = []
    wrapped: list[French] = inflected
    clitics = how.pronouns.french
    if not how.modal:
        wrapped = clitics + wrapped
    if how.negation:
        close = french(NEGATIONS[how.negation], negators)
        wrapped = french("ne", negators) + wrapped + close
    adverb = phrase(*how.adverb) if how.adverb else Phrase()
    wrapped = wrapped + adverb.french + rest
    if how.modal:
        wrapped += clitics + french(verb.french, infinitive)
    # The order is *can no longer*, but *no longer wants* for other verbs.
    if how.negation == "no longer" and finite.english == "can":
        before, shown = shown, before
    words = before + adverb.english + shown + particle + infinitive
    return Phrase(words + how.pronouns.english, wrapped)


def _participle(verb: Verb, subject: NounPhrase, how: Manner) -> str:
    """Return the participle: it agrees with the subject (être) or a preceding object (avoir)."""
    agrees_with = subject if verb.past == "être" else how.fronted
    if agrees_with is None:
        return participle(verb.french)
    return participle(verb.french, agrees_with.gender, agrees_with.plural)

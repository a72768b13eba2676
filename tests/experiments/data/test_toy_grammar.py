"""Phrases of the grammar, compared with French written by hand."""

import random

import pytest

from experiments.data.toy_language.clauses import BE
from experiments.data.toy_language.entries import ADJECTIVE, NOUN, SENSES, VERB, Noun
from experiments.data.toy_language.grammar import famous
from experiments.data.toy_language.morphology import imparfait, participle, present
from experiments.data.toy_language.nominal import (
    Draft,
    NounPhrase,
    country_phrase,
    noun_phrase,
    of,
    predicate_adjective,
    stand_in,
)
from experiments.data.toy_language.phrase import Pair, Phrase, finish, phrase
from experiments.data.toy_language.predicate import Manner, conjugate, object_pronoun

D = Draft(random.Random(0))
JANE = NounPhrase(phrase("Jane", "Jane"), "f", "il")
PAUL = NounPhrase(phrase("Paul", "Paul"), "m", "il")
WOMEN = NounPhrase(phrase("Jane and Alice", "Jane et Alice"), "f", "ils")


def thing(words: str, *, plural: bool = False, negated: bool = False) -> NounPhrase:
    """Return a noun phrase from its English: determiner, adjectives, singular noun."""
    determiner, *adjectives, noun = words.split()
    found = NOUN.get(noun) or _sense(noun)
    return noun_phrase(D, found, determiner="a" if determiner == "an" else determiner,
                       plural=plural, adjectives=[ADJECTIVE[a] for a in adjectives],
                       negated=negated)  # fmt: skip


def _sense(french: str) -> Noun:
    return next(noun for noun in SENSES if noun.french == french)


def say(who: NounPhrase, verb: str, *rest: Phrase, **manner: object) -> Phrase:
    """Return a sentence of subject, verb and complements."""
    sentence = who.phrase + conjugate(BE if verb == "be" else VERB[verb], who, Manner(**manner))
    for part in rest:
        sentence = sentence + part
    return sentence


def pair(sentence: Phrase) -> tuple[str, str]:
    done = finish(sentence)
    return done.en, done.fr


@pytest.mark.parametrize(
    ("words", "plural", "english", "french"),
    [
        ("a fluffy blue creature", False, "a fluffy blue creature",
         "une créature bleue et duveteuse"),
        ("the small blue bird", False, "the small blue bird", "le petit oiseau bleu"),
        ("a beautiful bird", False, "a beautiful bird", "un bel oiseau"),
        ("the old hotel", False, "the old hotel", "le vieil hôtel"),
        ("the old hotel", True, "the old hotels", "les vieux hôtels"),
        ("a new umbrella", False, "a new umbrella", "un nouveau parapluie"),
        ("a new plane", False, "a new plane", "un nouvel avion"),
        ("some big dog", True, "some big dogs", "de grands chiens"),
        ("some white horse", True, "some white horses", "des chevaux blancs"),
        ("a famous French novel", False, "a famous French novel", "un roman français célèbre"),
        ("my friend", False, "my friend", "mon ami"),
        ("my school", False, "my school", "mon école"),
        ("her house", False, "her house", "sa maison"),
        ("his house", False, "his house", "sa maison"),
        ("this oak", False, "this oak", "ce chêne"),
        ("this hotel", False, "this hotel", "cet hôtel"),
        ("this owl", False, "this owl", "ce hibou"),
        ("the hedgehog", False, "the hedgehog", "le hérisson"),
        ("some water", False, "some water", "de l'eau"),
        ("some bread", False, "some bread", "du pain"),
        ("some meat", False, "some meat", "de la viande"),
        ("many owl", True, "many owls", "beaucoup de hiboux"),
        ("many egg", True, "many eggs", "beaucoup d'œufs"),
        ("a wooden table", False, "a wooden table", "une table en bois"),
        ("the muddy rive", False, "the muddy bank", "la rive boueuse"),
        ("the modern banque", False, "the modern bank", "la banque moderne"),
        ("the rusty ressort", True, "the rusty springs", "les ressorts rouillés"),
        ("the pure source", False, "the pure spring", "la source pure"),
    ],
)  # fmt: skip
def test_noun_phrases(words: str, plural: bool, english: str, french: str) -> None:
    assert pair(thing(words, plural=plural).phrase) == (english, french)


APPLE, CARS = thing("the apple"), thing("the car", plural=True)
TO_HIM = phrase("to him", "lui")


@pytest.mark.parametrize(
    ("sentence", "english", "french"),
    [
        (say(JANE, "arrive", past=True), "Jane arrived", "Jane est arrivée"),
        (say(WOMEN, "leave", past=True), "Jane and Alice left", "Jane et Alice sont parties"),
        (say(PAUL, "arrive", past=True, negation="not"), "Paul did not arrive",
         "Paul n'est pas arrivé"),
        (say(PAUL, "eat", thing("an apple", negated=True).phrase, negation="not"),
         "Paul does not eat an apple", "Paul ne mange pas de pomme"),
        (say(PAUL, "sleep", negation="no longer"), "Paul no longer sleeps", "Paul ne dort plus"),
        (say(JANE, "eat", past=True, fronted=APPLE, pronouns=object_pronoun(APPLE)),
         "Jane ate it", "Jane l'a mangée"),
        (say(JANE, "sell", past=True, fronted=CARS, pronouns=object_pronoun(CARS),
             negation="never"),
         "Jane never sold them", "Jane ne les a jamais vendues"),
        (say(PAUL, "give", fronted=APPLE, pronouns=object_pronoun(APPLE) + TO_HIM),
         "Paul gives it to him", "Paul la lui donne"),
        (say(PAUL, "look", fronted=APPLE, pronouns=object_pronoun(APPLE)),
         "Paul looks for it", "Paul la cherche"),
        (say(PAUL, "eat", modal=VERB["want"], pronouns=object_pronoun(APPLE)),
         "Paul wants to eat it", "Paul veut la manger"),
        (say(PAUL, "look", modal=VERB["can"], negation="not", pronouns=object_pronoun(CARS)),
         "Paul cannot look for them", "Paul ne peut pas les chercher"),
        (say(PAUL, "work", modal=VERB["can"], negation="no longer"),
         "Paul can no longer work", "Paul ne peut plus travailler"),
        (say(JANE, "visit", country_phrase("Japan", "object"), adverb=("often", "souvent")),
         "Jane often visits Japan", "Jane visite souvent le Japon"),
        (say(JANE, "go", country_phrase("the United States", "to")),
         "Jane goes to the United States", "Jane va aux États-Unis"),
        (say(JANE, "return", country_phrase("Africa", "from")),
         "Jane returns from Africa", "Jane revient d'Afrique"),
        (say(JANE, "live", country_phrase("Rome", "in")),
         "Jane lives in Rome", "Jane habite à Rome"),
        (say(PAUL, "see", thing("the touche").phrase, of(thing("the piano"))),
         "Paul sees the key of the piano", "Paul voit la touche du piano"),
        (say(thing("the girl", plural=True), "be",
             predicate_adjective(D, ADJECTIVE["happy"], thing("the girl", plural=True))),
         "the girls are happy", "les filles sont heureuses"),
        (say(stand_in(CARS), "be", predicate_adjective(D, ADJECTIVE["white"], CARS), past=True),
         "they were white", "elles étaient blanches"),
    ],
)  # fmt: skip
def test_clauses(sentence: Phrase, english: str, french: str) -> None:
    assert pair(sentence) == (english, french)


def test_famous_sentences_and_their_alignment() -> None:
    jane, creature = famous()
    assert jane == Pair(
        "Jane visits Africa in September", "Jane visite l'Afrique en septembre",
        ((0, 0), (1, 1), (2, 3), (3, 4), (4, 5)),
    )  # fmt: skip
    assert creature.fr == "une créature bleue et duveteuse parcourait la forêt verdoyante"
    assert creature.alignment == (
        (0, 0), (1, 4), (2, 2), (3, 1), (4, 5), (5, 6), (6, 8), (7, 7),
    )  # fmt: skip


def test_alignment_of_contraction_and_negation() -> None:
    sentence = say(PAUL, "go", phrase("to", "à") + thing("the market").phrase, negation="not")
    done = finish(sentence)
    assert done.fr == "Paul ne va pas au marché"
    # Paul does not go to the market
    assert done.alignment == (
        (0, 0), (1, 1), (1, 3), (2, 1), (2, 3), (3, 2), (4, 4), (5, 4), (6, 5),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (present("manger")["nous"], "mangeons"),
        (imparfait("manger")["il"], "mangeait"),
        (imparfait("manger")["nous"], "mangions"),
        (present("parcourir")["ils"], "parcourent"),
        (imparfait("connaître")["ils"], "connaissaient"),
        (participle("peindre", "f", True), "peintes"),
    ],
)
def test_conjugation(got: str, wanted: str) -> None:
    assert got == wanted


def test_no_cue_belongs_to_two_senses_of_a_word() -> None:
    for noun in SENSES:
        for other in SENSES:
            if other.english == noun.english and other is not noun:
                assert not noun.sense.cues & other.sense.cues, noun.english

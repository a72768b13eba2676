"""The toy language: phrases and clauses by hand, properties of the whole corpus, its files."""

import hashlib
import re
from collections import Counter
from dataclasses import asdict
from itertools import islice
from random import Random

import pytest

from experiments.data import toy
from experiments.data.tokenizers import SentencePair, detokenize, tokenize
from experiments.data.toy import FAMOUS, ToySizes, corpus, derivations, is_held_out
from experiments.data.toy_language import lexicon, phrases
from experiments.data.toy_language.phenomena import by_phenomenon, occurrences
from experiments.data.toy_language.sentences import (
    Manner,
    company,
    conjugate,
    errand,
    polysemous,
    question,
    simple,
)

TINY = ToySizes(train=1_000, validation=20, test=20, compositional=20, longer=20)
FINGERPRINT = "70bb29e9fd5a9a44"  # of the default corpus: a change makes new records necessary
D = phrases.Draft(Random(0))
JANE = phrases.referring(phrases.phrase("Jane", "Jane"), "f", "il")
PAUL = phrases.referring(phrases.phrase("Paul", "Paul"), "m", "il")
WE = phrases.referring(phrases.phrase("we", "nous"), "?", "nous")
WOMEN = phrases.referring(phrases.phrase("Jane and Alice", "Jane et Alice"), "f", "ils")
JAPAN = phrases.definite("Japan", "le", "Japon")
WHITE = D.agreeing(lexicon.ADJECTIVES["white"], "f", True)


def thing(words, plural=False, negated=False):
    """Return a noun phrase from its English: determiner, adjectives, singular noun."""
    determiner, *adjectives, word = words.split(" ")
    noun = lexicon.NOUNS.get(word) or lexicon.BY_FRENCH[word]
    adjectives = [lexicon.ADJECTIVES[adjective] for adjective in adjectives]
    options = {"plural": plural, "negated": negated, "adjectives": adjectives}
    return D.noun_phrase(noun, determiner=determiner, **options)


@pytest.mark.parametrize(
    ("words", "plural", "english", "french"),
    [
        ("a fluffy blue creature", 0, "a fluffy blue creature", "une créature bleue et duveteuse"),
        ("a old hotel", 0, "an old hotel", "un vieil hôtel"),
        ("some big dog", 1, "some big dogs", "de grands chiens"),
        ("this owl", 1, "these owls", "ces hiboux"),
        ("many egg", 1, "many eggs", "beaucoup d'œufs"),
        ("a wooden table", 0, "a wooden table", "une table en bois"),
        ("the rusty ressort", 1, "the rusty springs", "les ressorts rouillés"),
    ],
)
def test_noun_phrases(words, plural, english, french):
    assert phrases.finish(thing(words, plural))[:2] == (english, french)


VERBS, APPLE, CARS = lexicon.VERBS, thing("the apple"), thing("the car", True)
IT = {"fronted": APPLE, "pronouns": phrases.object_pronoun(APPLE)}
THEM = phrases.object_pronoun(CARS)


@pytest.mark.parametrize(
    ("who", "verb", "manner", "rest", "english", "french"),
    [
        (WOMEN, "leave", {"past": True}, (), "Jane and Alice left", "Jane et Alice sont parties"),
        (PAUL, "eat", {"negation": "not"}, (thing("a apple", negated=True),),
         "Paul does not eat an apple", "Paul ne mange pas de pomme"),
        (JANE, "eat", {"past": True, **IT}, (), "Jane ate it", "Jane l'a mangée"),
        (JANE, "sell", {"past": True, "fronted": CARS, "pronouns": THEM, "negation": "never"}, (),
         "Jane never sold them", "Jane ne les a jamais vendues"),
        (PAUL, "eat", {"modal": VERBS["want"], **IT}, (),
         "Paul wants to eat it", "Paul veut la manger"),
        (PAUL, "work", {"modal": VERBS["can"], "negation": "no longer"}, (),
         "Paul can no longer work", "Paul ne peut plus travailler"),
        (JANE, "visit", {"adverb": ("often", "souvent")}, (JAPAN,),
         "Jane often visits Japan", "Jane visite souvent le Japon"),
        (phrases.stand_in(CARS), "be", {"past": True, "negation": "not"}, (WHITE,),
         "they were not white", "elles n'étaient pas blanches"),
        (WOMEN, "sit", {"past": True, "negation": "not"}, (),
         "Jane and Alice did not sit", "Jane et Alice n'étaient pas assises"),
        (WE, "go", {"past": True}, (), "we went", "nous sommes allés"),
        (PAUL, "eat", {"negation": "not"}, (thing(" bread", negated=True),),
         "Paul does not eat bread", "Paul ne mange pas de pain"),
    ],
)  # fmt: skip
def test_clauses(who, verb, manner, rest, english, french):
    sentence = sum(rest, who + conjugate(VERBS[verb], who, Manner(**manner)))
    assert phrases.finish(sentence)[:2] == (english, french)


def test_alignment_of_contraction_and_negation():
    going = conjugate(VERBS["go"], PAUL, Manner(negation="not"))
    assert phrases.finish(PAUL + going + phrases.phrase("to", "à") + thing("the market")) == (
        "Paul does not go to the market",
        "Paul ne va pas au marché",
        "0-0 1-1 1-3 2-1 2-3 3-2 4-4 5-4 6-5",
    )


class GuidedDraft(phrases.Draft):
    """A draft that prefers some words, so that a few thousand derivations contain a sentence."""

    words: tuple[str, ...] = ()

    def choose(self, things):
        first = [thing if isinstance(thing, str) else thing[0] for thing in things]
        preferred = [t for t, text in zip(things, first, strict=True) if text in self.words]
        return super().choose(preferred or things)


# Sentences of attention tutorials, and the words of the lexicon that lead to them.
CLASSICAL = [
    (errand, "go banque deposit money",
     "I went to the bank to deposit money", "je suis allé à la banque pour déposer de l'argent",
     "0-0 1-1 1-2 2-3 3-4 4-5 5-6 6-7 7-10"),
    (polysemous, "bank river dirty", "the bank of the river was dirty",
     "la rive du fleuve était sale", "0-0 1-1 2-2 3-2 4-3 5-4 6-5"),
    (polysemous, "bank river dirty",
     "the river bank was dirty", "la rive du fleuve était sale", "0-0 1-3 2-1 3-4 4-5"),
    (simple, "sit", "I sat on the bank of the river",
     "j'étais assis sur la rive du fleuve", "0-0 1-1 1-2 2-3 3-4 4-5 5-6 6-6 7-7"),
    (simple, "cat sit seat mat", "the cat sat on the mat",
     "le chat était assis sur le tapis", "0-0 1-1 2-2 2-3 3-4 4-5 5-6"),
    (simple, "eat food apple breakfast",
     "I ate an apple for breakfast", "j'ai mangé une pomme au petit-déjeuner",
     "0-0 1-1 1-2 2-3 3-4 4-5 5-6"),
    (company, "Apple release device phone new",
     "Apple released a new phone", "Apple a sorti un nouveau téléphone",
     "0-0 1-1 1-2 2-3 3-4 4-5"),
    (question, "", "who am I", "qui suis-je", "0-0 1-1 2-1"),
]  # fmt: skip


@pytest.mark.parametrize(("construction", "words", "english", "french", "links"), CLASSICAL)
def test_grammar_derives_classical_sentences(construction, words, english, french, links):
    for seed in range(20_000):
        d = GuidedDraft(Random(seed))
        d.words = (*words.split(), *english.split())
        pair = phrases.finish(construction(d))
        if pair.source == english:
            break
    assert d.is_unambiguous
    assert not any(
        is_held_out(combination, seed) for seed in range(50) for combination in d.combinations
    )
    assert pair == SentencePair(english, french, links)


@pytest.fixture(scope="module")
def splits():
    """Return the corpus of the default size."""
    return corpus(0, ToySizes())


@pytest.fixture(scope="module")
def pairs(splits):
    return [pair for split in splits.values() for pair in split]


@pytest.fixture(scope="module")
def tiny():
    return corpus(0, TINY)


def test_fingerprint_and_sizes(splits):
    lines = "\n".join("\t".join(pair) for split in splits.values() for pair in split)
    assert hashlib.sha256(lines.encode()).hexdigest()[:16] == FINGERPRINT
    assert {name: len(split) for name, split in splits.items()} == asdict(ToySizes())
    assert {*FAMOUS} <= {*splits["test"]}


def test_translation_is_a_function_and_no_sentence_repeats(pairs):
    french = {}
    for pair, _ in islice(derivations(seed=7), 20_000):
        assert french.setdefault(pair.source, pair.target) == pair.target
    assert len({pair.source for pair in pairs}) == len(pairs)


@pytest.mark.parametrize("side", ["source", "target"])
def test_every_word_is_frequent_in_train(splits, pairs, side):
    train = Counter(word for pair in splits["train"] for word in tokenize(getattr(pair, side)))
    assert len(train) >= 250
    assert min(train[word] for pair in pairs for word in tokenize(getattr(pair, side))) >= 20
    classical = [SentencePair(*sentence[2:]) for sentence in CLASSICAL]
    assert min(train[word] for pair in classical for word in tokenize(getattr(pair, side))) >= 20


def test_held_out_combinations_are_only_in_compositional(splits):
    split_of = {pair.source: name for name, split in splits.items() for pair in split}
    kinds = set()
    for pair, combinations in islice(derivations(seed=0), 10_000):
        unseen = {words for words in combinations if is_held_out(words, seed=0)}
        if name := split_of.get(pair.source):
            assert bool(unseen) == (name == "compositional"), pair.source
        if name == "compositional":
            kinds |= {kind for kind, _, _ in unseen}
    assert kinds >= {"adjective", "object", "subject", "place", "pronoun"}


WRONG_FRENCH = "|".join([
    r"(?<!-)\b(le|la|de|ne|je|me|que|ma|sa|ce) [aeiouéèêâîôœ]",
    r"\b(le|la|de|ne|ma|sa|ce) h(omme|ôtel|ôpital|istoire|irondelle|onnête|istorien|orloge)",
    r"\bd[eu] les\b", r"\bde le (?!\w+er\b)", r"\bà les?\b",
    r"\b(bel|vieil|nouvel|cet) [bcdfgjklmnpqrstvwxz]",
    r"\b(beau|vieux|nouveau|ce) (homme|hôtel|hôpital|oiseau|aigle|ami|avion|éléphant)\b",
    r"\w' ", r"  ", r"[A-ZÀ]'", r"[.,;!?]", r"\bl'(hibou|hérisson)", r"\b(un|des|du) .* de les\b",
])  # fmt: skip


# French words that may have no English one: la France, du pain, et between adjectives, jouer au.
FRENCH_ONLY = {"le", "la", "l'", "les", "et", "de", "d'", "du", "à", "au", "aux"}


def test_lengths_alignment_and_elision(splits):
    for name, split in splits.items():
        for pair in split:
            english, french = tokenize(pair.source), tokenize(pair.target)
            assert (detokenize(english), detokenize(french)) == pair[:2]
            assert len(english) >= 3
            assert len(english) > 20 if name == "longer" else max(len(english), len(french)) <= 20
            assert len({*pair.alignment}) == len(pair.alignment)
            assert all(i < len(english) and j < len(french) for i, j in pair.alignment)
            unaligned = {french[j] for j in {*range(len(french))} - {j for _, j in pair.alignment}}
            assert unaligned <= FRENCH_ONLY, pair
            assert not re.search(WRONG_FRENCH, pair.target), pair


def test_cues_and_translation_agree_on_senses(pairs):
    checked, twice = Counter(), set()
    for pair in pairs:
        english = {*f" {pair.source}".replace(" in spring", "").split()}
        cued = [
            noun
            for noun in lexicon.SENSES
            if english & {noun.english, lexicon.english_plural(noun.english)}
            and any(english & {cue, lexicon.english_plural(cue)} for cue in noun.cues)
        ]
        assert {noun[:2] for noun in cued} == {
            (word, sense) for *_, word, sense in occurrences([pair])
        }
        words = Counter(noun.english for noun in cued)
        twice |= {word for word, number in words.items() if number == 2}
        checked.update(noun[:2] for noun in cued)
    listed = Counter((word, sense) for _, _, word, sense in occurrences(pairs))
    assert {*listed} == {*checked} == {noun[:2] for noun in lexicon.SENSES}
    assert min(checked.values()) >= 50
    assert twice == {"bank"}


def test_corpus_is_stored_once_and_whole(tmp_path, tiny, monkeypatch, capsys):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(toy.ToyTranslation, "_generate_examples", killed)
        with pytest.raises(KeyboardInterrupt):
            toy.load_pairs(0, TINY, "train", tmp_path)
    toy.load_pairs(0, TINY, "train", tmp_path)
    monkeypatch.setattr(toy, "corpus", None)  # a second call would fail
    for name, split in tiny.items():
        assert sorted(toy.load_pairs(0, TINY, name, tmp_path)) == sorted(split)
    assert capsys.readouterr() == ("", "")


def test_dataset_that_another_process_generates_meanwhile(tmp_path, monkeypatch, tiny):
    def generate(*_):
        monkeypatch.setattr(toy, "corpus", lambda *_: tiny)
        toy.prepare(tmp_path, 0, TINY)
        return tiny

    monkeypatch.setattr(toy, "corpus", generate)
    builder = toy.prepare(tmp_path, 0, TINY)
    assert len(builder.as_data_source(split="train")) == TINY.train


def test_occurrences_and_exact_match_by_phenomenon():
    plain = SentencePair("the king sleeps", "le roi dort", "0-0 1-1 2-2")
    reordered = SentencePair("the happy king", "le roi heureux", "0-0 1-2 2-1")
    agreeing = SentencePair("a small queen", "une petite reine", "0-0 1-1 2-2")
    all_three = SentencePair("the muddy banks", "les rives boueuses", "0-0 1-2 2-1")
    pairs = [plain, reordered, reordered, agreeing, all_three]
    assert occurrences(pairs) == [(4, 2, "bank", "rive")]
    answers = ["wrong", reordered.target, "wrong", "wrong", all_three.target]
    assert by_phenomenon(pairs, answers) == {
        "agreement": {"sentences": 2, "exact_match": 1 / 2},
        "order": {"sentences": 3, "exact_match": 2 / 3},
        "polysemy": {"sentences": 1, "exact_match": 1.0},
    }

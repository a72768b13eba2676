"""Scores by hand."""

import numpy as np
import pytest

from experiments.evaluation.scores import paired_bootstrap, translation_scores


def test_a_perfect_translation():
    sentences = ["un chat noir dort ici", "la maison est très belle"]
    scores = translation_scores(sentences, sentences)
    assert scores["exact_match"] == 1
    assert round(scores["bleu"], 6) == 100
    assert scores["sentences"] == 2
    assert "version:" in scores["bleu_signature"]


def test_one_of_four():
    references = ["a b c d", "a b c e", "a b c f", "a b c g"]
    scores = translation_scores(["a b c d", "a b c d", "x", ""], references)
    assert scores["exact_match"] == 0.25
    assert 0 < scores["bleu"] < 100


def test_tokens_are_counted_as_they_stand_and_under_another_name():
    references = ["ein hund , der läuft ."]
    plain, tokenized = (
        translation_scores(["ein hund, der läuft."], references, tokenized=tokenized)
        for tokenized in (False, True)
    )
    assert round(plain["bleu"], 6) == 100  # sacreBLEU takes the marks apart itself
    assert tokenized["tok_bleu"] < 50
    assert "bleu" not in tokenized
    assert "tok:none" in tokenized["bleu_signature"]
    assert plain["chrf"] == tokenized["chrf"] == 100  # blanks do not count


def test_chance_explains_a_small_difference_and_not_a_large_one():
    random = np.random.default_rng(0)
    references = [" ".join(random.choice([*"abcdefgh"], 9)) for _ in range(60)]

    def spoiled(number):
        return [line[:8] + line[11:] if at < number else line for at, line in enumerate(references)]

    systems = {"first": spoiled(30), "like it": spoiled(31), "better": spoiled(5)}
    chances = paired_bootstrap(systems, references, tokenized=True)
    assert chances.keys() == {"like it", "better"}
    assert chances["better"] < 0.01 < 0.05 < chances["like it"]


@pytest.mark.parametrize("said", ["a b c d e", "a b c d x", ""])
def test_what_says_the_same_differs_by_chance_alone(said):
    same = paired_bootstrap({"one": [said] * 9, "other": [said] * 9}, ["a b c d e"] * 9)
    assert same == {"other": 1.0}

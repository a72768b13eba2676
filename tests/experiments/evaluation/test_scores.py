"""Scores by hand."""

from experiments.evaluation.scores import translation_scores


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

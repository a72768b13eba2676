"""Scores by hand."""

import numpy as np
import pytest

from experiments.errors import UsageError
from experiments.registry import METRICS
from experiments.scores import answer_scores, paired_bootstrap

ALL = "exact_match", "bleu", "chrf"


def test_perfect_translation():
    sentences = ["un chat noir dort ici", "la maison est très belle"]
    scores = answer_scores(ALL, sentences, sentences)
    assert scores["exact_match"] == 1
    assert round(scores["bleu"], 6) == 100
    assert scores["sentences"] == 2
    assert "version:" in scores["bleu_signature"]


def test_one_of_four_correct():
    references = ["a b c d", "a b c e", "a b c f", "a b c g"]
    scores = answer_scores(ALL, ["a b c d", "a b c d", "x", ""], references)
    assert scores["exact_match"] == 0.25
    assert 0 < scores["bleu"] < 100


def test_tokenized_text_is_scored_without_tokenization_as_tok_bleu():
    references = ["ein hund , der läuft ."]
    plain, tokenized = (
        answer_scores(ALL, ["ein hund, der läuft."], references, tokenized=tokenized)
        for tokenized in (False, True)
    )
    assert round(plain["bleu"], 6) == 100  # sacreBLEU tokenizes punctuation
    assert tokenized["tok_bleu"] < 50
    assert "bleu" not in tokenized
    assert "tok:none" in tokenized["bleu_signature"]
    assert plain["chrf"] == tokenized["chrf"] == 100  # chrF ignores spaces


def test_a_registered_metric_is_computed(monkeypatch):
    def length_ratio(answers, references):
        return len(answers[0]) / len(references[0])

    monkeypatch.setitem(METRICS, "length_ratio", length_ratio)
    assert answer_scores(["length_ratio"], ["abcd"], ["ab"]) == {"sentences": 1, "length_ratio": 2}


@pytest.mark.parametrize("found", [np.array([True, False]), {"share": [1, 0]}, None])
def test_metric_without_a_number_raises(found, monkeypatch):
    monkeypatch.setitem(METRICS, "mine", lambda answers, references: found)
    with pytest.raises(UsageError, match=r"^the metric 'mine' failed: TypeError: "):
        answer_scores(["mine"], ["a", "b"], ["a", "c"])


def test_bootstrap_p_value_of_small_and_large_differences():
    random = np.random.default_rng(0)
    references = [" ".join(random.choice([*"abcdefgh"], 9)) for _ in range(60)]

    def spoiled(number):
        return [line[:8] + line[11:] if at < number else line for at, line in enumerate(references)]

    first, tokenized = spoiled(30), {"tokenized": True}
    better = paired_bootstrap(first, spoiled(5), references, **tokenized)
    assert better < 0.01 < 0.05 < paired_bootstrap(first, spoiled(31), references, **tokenized)


def test_p_value_of_equal_outputs_is_one():
    for output in ("a b c d e", "a b c d x", ""):
        assert paired_bootstrap([output] * 9, [output] * 9, ["a b c d e"] * 9) == 1

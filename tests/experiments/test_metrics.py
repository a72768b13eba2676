"""Scores by hand."""

import numpy as np
import pytest

from experiments.metrics import answer_scores, paired_bootstrap
from experiments.registry import METRICS

ALL = "exact_match", "bleu", "chrf"


def test_one_of_four_correct():
    references = ["a b c d", "a b c e", "a b c f", "a b c g"]
    scores = answer_scores(ALL, ["a b c d", "a b c d", "x", ""], references)
    assert (scores["sentences"], scores["exact_match"]) == (4, 0.25)
    assert 0 < scores["bleu"] < 100
    assert "version:" in scores["bleu_signature"]


def test_tokenized_text_is_scored_without_tokenization_as_tok_bleu():
    references = ["ein hund , der läuft ."]
    plain, tokenized = (
        answer_scores(ALL, ["ein hund, der läuft."], references, tokenized=tokenized)
        for tokenized in (False, True)
    )
    assert plain["bleu"] == pytest.approx(100)  # sacreBLEU tokenizes punctuation
    assert tokenized["tok_bleu"] < 50 and "bleu" not in tokenized
    assert "tok:none" in tokenized["bleu_signature"]
    assert plain["chrf"] == tokenized["chrf"] == 100  # chrF ignores spaces


def test_numbers_of_a_registered_metric_are_floats(monkeypatch):
    numbers = {"share": np.float32(0.5), "note": "words"}
    monkeypatch.setitem(METRICS, "mine", lambda answers, references: numbers)
    scores = answer_scores(["mine"], ["abcd"], ["ab"])
    assert scores == {"sentences": 1, **numbers} and type(scores["share"]) is float


def test_bootstrap_p_value_of_small_and_large_differences():
    random = np.random.default_rng(0)
    references = [" ".join(random.choice([*"abcdefgh"], 9)) for _ in range(60)]

    def spoiled(number):
        return [line[:8] + line[11:] if at < number else line for at, line in enumerate(references)]

    first, tokenized = spoiled(30), {"tokenized": True}
    better = paired_bootstrap(first, spoiled(5), references, **tokenized)
    assert better < 0.01 < 0.05 < paired_bootstrap(first, spoiled(31), references, **tokenized)
    assert paired_bootstrap(first, first, references, **tokenized) == 1

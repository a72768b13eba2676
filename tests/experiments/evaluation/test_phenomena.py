"""Phenomena of a sentence, by hand, and their scores."""

import pytest

from experiments.data.tokenizers import SentencePair
from experiments.evaluation.phenomena import by_phenomenon, phenomena

PLAIN = SentencePair("the king sleeps", "le roi dort", "0-0 1-1 2-2")
HAPPY_KING = SentencePair("the happy king", "le roi heureux", "0-0 1-2 2-1")
SMALL_QUEEN = SentencePair("a small queen", "une petite reine", "0-0 1-1 2-2")
BANK = SentencePair("the bank of the river", "la rive de la rivière", "0-0 1-1 2-2 3-3 4-4")


@pytest.mark.parametrize(
    "pair, shown",
    [
        (PLAIN, set()),
        (HAPPY_KING, {"order"}),
        (SMALL_QUEEN, {"agreement"}),
        (BANK, {"polysemy"}),
    ],
)
def test_phenomena_by_hand(pair, shown):
    assert {name for name, is_shown in phenomena(pair).items() if is_shown} == shown


def test_exact_match_by_phenomenon():
    pairs = [PLAIN, HAPPY_KING, HAPPY_KING, SMALL_QUEEN]
    said = ["wrong", HAPPY_KING.target, "wrong", SMALL_QUEEN.target]
    assert by_phenomenon(pairs, said) == {
        "order": {"sentences": 2, "exact_match": 0.5},
        "agreement": {"sentences": 1, "exact_match": 1.0},
    }

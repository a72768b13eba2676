"""Selection by names and patterns."""

import pytest

from experiments.benchmarks.selection import selected

KNOWN = ["full_64", "full_128", "causal_64"]


@pytest.mark.parametrize(
    "words, expected",
    [
        ("all", KNOWN),
        ("causal_64 full_64", ["full_64", "causal_64"]),
        ("full_*, causal_64", KNOWN),
        ("*_64", ["full_64", "causal_64"]),
        ("", []),
    ],
)
def test_selection(words, expected):
    assert selected("cases", words, KNOWN) == expected


def test_unknown_name_raises():
    with pytest.raises(ValueError, match=r"cases has no 'ful_64', .* did you mean 'full_64'\?"):
        selected("cases", "causal_64 ful_64", KNOWN)

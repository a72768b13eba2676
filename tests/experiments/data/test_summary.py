"""Summaries are of the actions of the person who acts most, and no sentence of the document."""

import re
from collections import Counter

import pytest

from experiments.data.summary import (
    CIRCUMSTANCES,
    PERSONS,
    Sentence,
    SummaryData,
    SummarySizes,
    load,
    main_person,
)


def sentences(text):
    """Return the sentences of a document, from its text."""
    pattern = re.compile(rf"(\w+) (.+?)(?: ({'|'.join(CIRCUMSTANCES)}))?")
    return [Sentence(*(x or "" for x in pattern.fullmatch(s).groups())) for s in text.split(" ; ")]


def test_tie_has_no_main_person():
    assert main_person(sentences("ben sang ; anna sang ; ben slept ; anna called ben")) is None


@pytest.fixture(scope="module")
def pairs():
    config = SummaryData(shortest=4, longest=8, sizes=SummarySizes(train=1_000))
    return load(config, "train", None)


def test_summary_lists_the_actions_of_the_most_active_person_in_order(pairs):
    for document, summary, _ in pairs:
        told = sentences(document)
        assert 4 <= len(told) <= 8
        (person, most), *others = Counter(sentence.person for sentence in told).most_common()
        assert all(number < most for _, number in others)
        name, said = summary.split(" ", 1)
        assert name == person
        expected = [sentence.deed for sentence in told if sentence.person == person]
        assert re.split(" , | and ", said) == [*dict.fromkeys(expected)]


def test_summary_is_no_sentence_and_often_not_about_the_first_or_most_named_person(pairs):
    first = other = 0
    for document, summary, _ in pairs:
        assert summary not in document.split(" ; ")
        first += document.split()[0] == summary.split()[0]
        ((most_named, _),) = Counter(re.findall("|".join(PERSONS), document)).most_common(1)
        other += most_named != summary.split()[0]
    assert first < 0.75 * len(pairs) and other > 20

"""Summaries: by hand, and never equal to a sentence of the document."""

import re
from collections import Counter

import pytest

from experiments.config.data import Sizes
from experiments.data.summary import (
    CIRCUMSTANCES,
    Sentence,
    SummaryData,
    load,
    main_person,
    summarize,
)


def sentences(text):
    """Return the sentences of a document, from its text."""
    ends = "|".join(CIRCUMSTANCES)
    pattern = re.compile(rf"(\w+) (.+?)(?: ({ends}))?")
    return [Sentence(*(x or "" for x in pattern.fullmatch(s).groups())) for s in text.split(" ; ")]


BY_HAND = (
    "ben sang ; anna fed the cat ; ben called anna ; anna fed the cat at noon ; anna sang by the "
    "river ; clara thanked anna ; anna called ben"
)


def test_summary_by_hand():
    told = sentences(BY_HAND)
    assert told[3] == ("anna", "fed the cat", "at noon")
    assert main_person(told) == "anna"
    assert summarize(told, "anna") == "anna fed the cat , sang and called ben"
    assert summarize(told, "ben") == "ben sang and called anna"
    assert summarize(told, "clara") == "clara thanked anna"


def test_tie_has_no_main_person():
    assert main_person(sentences("ben sang ; anna sang ; ben slept ; anna called ben")) is None


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    config = SummaryData(shortest=4, longest=8, sizes=Sizes(train=1_000))
    return load(config, "train", tmp_path_factory.mktemp("none"))


def test_summary_lists_the_actions_of_the_most_active_person_in_order(pairs):
    for document, summary, _ in pairs:
        told = sentences(document)
        assert 4 <= len(told) <= 8
        (person, most), *others = Counter(each.person for each in told).most_common()
        assert all(number < most for _, number in others)
        name, said = summary.split(" ", 1)
        deeds = re.split(" , | and ", said)
        assert name == person
        assert deeds == list(dict.fromkeys(each.deed for each in told if each.person == person))
        assert len(deeds) > 1


def test_summary_is_no_sentence_and_often_not_about_the_first_person(pairs):
    assert not any(pair.target in pair.source.split(" ; ") for pair in pairs)
    first = sum(pair.source.split()[0] == pair.target.split()[0] for pair in pairs)
    mentioned = Counter()
    for pair in pairs:
        names = re.findall("anna|ben|clara|david|emma|frank|grace|hugo", pair.source)
        (most, _), *_ = Counter(names).most_common()
        mentioned[most == pair.target.split()[0]] += 1
    assert first < 0.75 * len(pairs)
    assert mentioned[False] > 20  # mentioned without acting

"""Summaries are of the actions of the person who acts most, and no sentence of the document."""

import re
from collections import Counter

from experiments.data.summary import CIRCUMSTANCES, PERSONS, SummaryData, SummarySizes, load


def test_summary_lists_the_actions_of_the_most_active_person_in_order():
    pattern = re.compile(rf"(\w+) (.+?)(?: (?:{'|'.join(CIRCUMSTANCES)}))?")
    first = other = 0
    pairs = load(SummaryData(sizes=SummarySizes(train=1_000)), "train", None)
    for document, summary, _ in pairs:
        actions = [pattern.fullmatch(sentence).groups() for sentence in document.split(" ; ")]
        assert 3 <= len(actions) <= 5
        (person, most), *others = Counter(person for person, _ in actions).most_common()
        assert all(number < most for _, number in others)
        expected = [*dict.fromkeys(action for who, action in actions if who == person)]
        name, told = summary.split(" ", 1)
        assert (name, re.split(" , | and ", told)) == (person, expected)
        assert summary not in document.split(" ; ")
        first += actions[0][0] == person
        ((most_named, _),) = Counter(re.findall("|".join(PERSONS), document)).most_common(1)
        other += most_named != person
    # The person is often not the first, and not the one who is named most.
    assert first < 0.75 * len(pairs) and other > 20

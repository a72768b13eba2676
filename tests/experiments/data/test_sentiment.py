"""Sentiment: labels follow a rule that counting words cannot approximate."""

import itertools
import re

import pytest

from experiments.data.sentiment import (
    LONGER_SCOPES,
    LONGEST,
    SCOPES,
    SentimentSizes,
    corpus,
    words,
)

NEGATORS = ("not", "never", "no", "nobody", "hardly")
BORDERS = (",", "and", "but", "because", "although")
PRAISE = {*words()["praise"]}
OPINIONS = PRAISE | {*words()["blame"]}


def praises(text):
    """Return whether a sentence praises, by the rule in the docstring of the module."""
    verdict, negated, conceded = None, False, False
    for word in re.sub(", which [^,]* ,", "", text).split():
        if word in BORDERS:
            negated, conceded = False, word == "although"
        elif word in NEGATORS:
            negated = not negated
        elif word in OPINIONS and not conceded:
            verdict = (word in PRAISE) != negated
    return verdict


@pytest.mark.parametrize(
    "text, verdict",
    [
        ("nobody says that the film was not good", True),
        ("the film was good but the plot was bad", False),
        ("the film was good although the plot was not good", True),
        ("nobody says that the film , which we never finished , was good", False),
    ],
)
def test_rule_by_hand(text, verdict):
    assert praises(text) == verdict


@pytest.fixture(scope="module")
def splits():
    return corpus(0, SentimentSizes(train=6_000, validation=100, test=1_000, longer=500))


def test_labels_follow_the_rule_and_are_balanced(splits):
    for pairs in splits.values():
        assert all(praises(pair.source) == (pair.target == "praise") for pair in pairs)
        assert sum(pair.target == "praise" for pair in pairs) == len(pairs) / 2


def test_sentences_are_distinct_and_train_has_every_word(splits):
    texts = [pair.source for pairs in splits.values() for pair in pairs]
    assert len({*texts}) == len(texts) == 7_600
    assert max(len(text.split()) for text in texts) <= LONGEST
    learned = {word for pair in splits["train"] for word in pair.source.split()}
    assert {word for text in texts for word in text.split()} == learned


def scopes(text):
    """Return the distances from negators to negated opinions; an aside counts as one word."""
    negators = []
    for place, word in enumerate(re.sub(", which [^,]* ,", "aside", text).split()):
        if word in BORDERS:
            negators = []
        elif word in NEGATORS:
            negators.append(place)
        elif word in OPINIONS:
            yield from (place - negator for negator in negators)


def test_split_longer_has_longer_scopes(splits):
    for name, pairs in splits.items():
        distances = {*itertools.chain.from_iterable(scopes(pair.source) for pair in pairs)}
        assert distances <= {*(LONGER_SCOPES if name == "longer" else SCOPES)}
        assert max(distances) - min(distances) >= 8


@pytest.mark.parametrize("longest", [1, 2], ids=["words", "bigrams"])
def test_bag_of_words_does_not_predict_the_label(splits, longest):
    from sklearn.feature_extraction.text import CountVectorizer  # imported here: it takes a second
    from sklearn.linear_model import LogisticRegression

    texts, labels, _ = zip(*splits["train"], strict=True)
    count = CountVectorizer(token_pattern=r"\S+", ngram_range=(1, longest))
    model = LogisticRegression(max_iter=500, C=0.1).fit(count.fit_transform(texts), labels)
    for name in ("test", "longer"):
        texts, labels, _ = zip(*splits[name], strict=True)
        assert model.score(count.transform(texts), labels) <= 0.65

"""Sentiment: labels follow a rule that counting words cannot approximate."""

import itertools
import re

import pytest

from experiments.data import sentiment
from experiments.data.sentiment import (
    BLAME,
    BORDERS,
    LONGER_SCOPES,
    LONGEST,
    NEGATORS,
    PRAISE,
    SCOPES,
    corpus,
    praises,
)
from experiments.data.sentiment import SentimentSizes as Sizes

SMALL = Sizes(train=6_000, validation=100, test=1_000, longer=500)


@pytest.fixture(scope="module")
def splits():
    return corpus(seed=0, sizes=SMALL)


@pytest.mark.parametrize(
    "text, verdict",
    [
        ("the film was good", True),
        ("the film was dull", False),
        ("the film was not good", False),
        ("the film was not in my view very dull", True),
        ("nobody says that the film was good", False),
        ("nobody says that the film was not good", True),
        ("the film was not long and the plot was good", True),
        ("it was never raining , the plot was good", True),
        ("the film was good but the plot was bad", False),
        ("the film was good but the plot was hardly bad", True),
        ("although the film was good , the plot was bad", False),
        ("the film was good although the plot was bad", True),
        ("the film was good although the plot was not good", True),
        ("the film , which we never finished , was good", True),
        ("nobody says that the film , which we never finished , was good", False),
        ("the film was bad although the plot , which we never finished , was good", False),
    ],
)
def test_rule_by_hand(text, verdict):
    assert praises(text) == verdict


def test_sentence_without_an_opinion_raises():
    with pytest.raises(ValueError, match="no opinion counts in 'although the film was good'"):
        praises("although the film was good")


def test_labels_follow_the_rule_and_are_balanced(splits):
    assert {name: len(split) for name, split in splits.items()} == {
        "train": 6_000,
        "validation": 100,
        "test": 1_000,
        "longer": 500,
    }
    for split in splits.values():
        assert all(praises(text) == positive for text, positive in split)
        assert sum(positive for _, positive in split) == len(split) / 2


def test_lengths(splits):
    texts = [judgement.text for split in splits.values() for judgement in split]
    assert max(len(text.split()) for text in texts) <= LONGEST


def test_no_sentence_repeats_although_the_grammar_repeats(monkeypatch):
    monkeypatch.setattr(sentiment, "_sentence", lambda rng, *_: str(rng.randrange(20)))
    splits = corpus(seed=0, sizes=Sizes(train=8, validation=2, test=6, longer=4))
    texts = [judgement.text for split in splits.values() for judgement in split]
    assert sorted(map(int, texts)) == list(range(20))


def test_train_contains_the_whole_vocabulary(splits):
    words = {
        name: {word for text, _ in split for word in text.split()} for name, split in splits.items()
    }
    assert len(words["train"]) >= 100
    assert set().union(*words.values()) == words["train"]


def scopes(text):
    """Return the distances from negators to negated opinions; an aside counts as one word."""
    negators = []
    for place, word in enumerate(re.sub(", which [^,]* ,", "aside", text).split()):
        if word in BORDERS:
            negators = []
        elif word in NEGATORS:
            negators.append(place)
        elif word in (*PRAISE, *BLAME):
            yield from (place - negator for negator in negators)


def test_split_longer_has_longer_scopes(splits):
    for name, split in splits.items():
        found = set(itertools.chain.from_iterable(scopes(text) for text, _ in split))
        assert found <= set(LONGER_SCOPES if name == "longer" else SCOPES)
        assert max(found) - min(found) >= 8


@pytest.mark.parametrize("longest", [1, 2], ids=["words", "bigrams"])
def test_bag_of_words_does_not_predict_the_label(splits, longest):
    from sklearn.feature_extraction.text import CountVectorizer  # imported here: it takes a second
    from sklearn.linear_model import LogisticRegression

    texts, labels = zip(*splits["train"], strict=True)
    count = CountVectorizer(token_pattern=r"\S+", ngram_range=(1, longest))
    model = LogisticRegression(max_iter=500, C=0.1).fit(count.fit_transform(texts), labels)
    for name in ("test", "longer"):
        texts, labels = zip(*splits[name], strict=True)
        assert model.score(count.transform(texts), labels) <= 0.65


def test_equal_seeds_give_equal_sentences():
    sizes = Sizes(train=20, validation=3, test=3, longer=3)
    assert corpus(5, sizes) == corpus(5, sizes)
    assert corpus(5, sizes) != corpus(6, sizes)


def test_an_empty_split_is_refused():
    with pytest.raises(ValueError, match="test must be at least 1, got 0"):
        Sizes(test=0)

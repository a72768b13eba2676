"""Vocabulary: ids of words, and the error for an unknown word."""

import pytest

from experiments.data.tokenizers import BOS, EOS, PAD, SPECIALS, Vocabulary
from experiments.errors import UsageError

VOCABULARY = Vocabulary.of([["the", "cat", "sat"], ["the", "dog", "sat"], ["the", "end"]])


def test_words_are_sorted_by_frequency_then_alphabetically():
    assert VOCABULARY.words == (*SPECIALS, "the", "sat", "cat", "dog", "end")
    assert len(VOCABULARY) == 8


def test_decode_inverts_encode():
    sentence = ["the", "dog", "sat"]
    assert VOCABULARY.decode(VOCABULARY.encode(sentence)) == sentence


def test_decode_stops_at_eos_and_skips_padding():
    the, sat = VOCABULARY.encode(["the", "sat"])
    assert VOCABULARY.decode([BOS, the, PAD, sat, EOS, the]) == ["the", "sat"]


@pytest.mark.parametrize("word", ["teh", "<pad>", "<bos>", "<eos>"])
def test_unknown_word_raises(word):
    with pytest.raises(ValueError, match=f"the word '{word}' is not in the vocabulary"):
        VOCABULARY.encode(["the", word])


def test_the_nearest_word_is_suggested():
    with pytest.raises(ValueError, match="did you mean 'cat'"):
        VOCABULARY.encode(["catt"])


@pytest.mark.parametrize("word", SPECIALS)
def test_word_that_is_spelled_as_a_special_one_is_a_usage_error(word):
    with pytest.raises(UsageError, match=f"^the word or class '{word}' of the data is a special"):
        Vocabulary.of([["the", word]])


def test_word_known_in_another_case_is_respelt():
    vocabulary = Vocabulary.of([["May", "Jane", "may", "may", "sing"]])
    words = ["jane", "JANE", "Sing", "May", "may", "MAY", "teh", "<PAD>"]
    respelt = ["Jane", "Jane", "sing", "May", "may", "may", "teh", "<PAD>"]
    assert [vocabulary.respell(word) for word in words] == respelt


def test_from_text_inverts_as_text():
    assert Vocabulary.from_text(VOCABULARY.as_text()) == VOCABULARY


@pytest.mark.parametrize("words", [("the",), (*SPECIALS, "the", "the")])
def test_invalid_vocabulary_raises(words):
    with pytest.raises(ValueError, match="a vocabulary"):
        Vocabulary(words)

"""Words and characters: ids, text, files, and errors for what is unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.data.source import store_text
from experiments.data.tokenizers import (
    BOS,
    EOS,
    PAD,
    SPACED,
    SPECIALS,
    UNKNOWN_CHARACTER,
    WORDS,
    Characters,
    CharacterTokenizer,
    SentencePair,
    Vocabulary,
    Words,
    detokenize,
    tokenize,
)
from experiments.errors import UsageError
from tests.experiments.data.corpora import learn

VOCABULARY = Vocabulary.of([["the", "cat", "sat"], ["the", "dog", "sat"], ["the", "end"]])
_WORD = st.text("abcéœ-XY", min_size=1, max_size=6)
_TOKEN = st.tuples(st.sampled_from(["", "l'", "qu'", "d'"]), _WORD)


@given(st.lists(_TOKEN, max_size=9))
def test_detokenize_inverts_tokenize(words):
    text = " ".join(elided + word for elided, word in words)
    assert detokenize(tokenize(text)) == text
    assert len(tokenize(text)) == sum(1 + bool(elided) for elided, _ in words)


def test_words_are_sorted_by_frequency_and_decoded_up_to_eos():
    assert VOCABULARY.words == (*SPECIALS, "the", "sat", "cat", "dog", "end")
    the, sat = VOCABULARY.encode(["the", "sat"])
    assert VOCABULARY.decode([BOS, the, PAD, sat, EOS, the]) == ["the", "sat"]


def test_word_known_in_another_case_is_respelt():
    vocabulary = Vocabulary.of([["May", "Jane", "may", "may", "sing"]])
    words = ["jane", "JANE", "Sing", "May", "may", "MAY", "teh", "<PAD>"]
    respelt = ["Jane", "Jane", "sing", "May", "may", "may", "teh", "<PAD>"]
    assert [vocabulary.respell(word) for word in words] == respelt


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: VOCABULARY.encode(["catt"]), "word 'catt' is not .*did you mean 'cat'"),
        (lambda: VOCABULARY.encode(["<pad>"]), "the word '<pad>' is not in the vocabulary"),
        (lambda: CharacterTokenizer.of(["to"]).read("tz"), "the character 'z' is not in the text"),
        (lambda: Vocabulary.of([["<eos>"]]), "word or class '<eos>' of the data is a special"),
    ],
)
def test_error_names_the_word(call, words):
    with pytest.raises((UsageError, ValueError), match=words):
        call()


def test_characters_and_ids():
    characters = CharacterTokenizer.of(["to be\n", "or not"])
    assert characters.characters == f"\n benort{UNKNOWN_CHARACTER}"
    assert characters.encode("bet\n") == characters.read("bet\n") == [2, 3, 7, 0]
    assert characters.decode([2, 3, 7, 0]) == "bet\n"
    assert characters.decode(characters.encode("bz,")) == f"b{UNKNOWN_CHARACTER * 2}"


@pytest.mark.parametrize("text", [Words(), Words(WORDS, shared=True), Characters()])
def test_tokenizers_are_saved_once_and_loaded(text, tmp_path):
    """Line separators of Unicode are characters, and parts of words."""
    pairs = [SentencePair('a b\u2028"', "a b\r\u0085c")] * 2
    cache, workdir = tmp_path / "cache", tmp_path / "workdir"
    workdir.mkdir()
    tokenizers = learn(text, None, pairs, cache)
    assert learn(text, None, pairs, cache) == tokenizers
    assert (tokenizers.source == tokenizers.target) == getattr(text, "shared", False)
    for _ in range(2):
        tokenizers.keep(workdir)
    assert text.load(workdir) == tokenizers
    assert text.load(workdir, (0,)) == tokenizers._replace(target=None)
    line = pairs[0].target
    words = line if isinstance(text, Characters) else " ".join(line.split())
    assert tokenizers.target.decode(tokenizers.encode(pairs[0]).target) == words
    with pytest.raises(UsageError, match="holds other words than the data"):
        learn(text, None, [SentencePair("x", "y")], cache).keep(workdir)
    (workdir / tokenizers.source.FILE.format(side="source")).write_bytes(b"the")
    with pytest.raises(UsageError, match="cannot be read"):
        text.load(workdir)


def test_tokens_of_one_text_are_not_those_of_another_kind(tmp_path):
    text = store_text(tmp_path, lambda: [SentencePair("l'eau", "a")])
    spaced, words = (Words(tokens).learn(None, text, tmp_path) for tokens in (SPACED, WORDS))
    assert (len(spaced.source), len(words.source)) == (3 + 1, 3 + 2)

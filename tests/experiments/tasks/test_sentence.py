"""Sentences as a person types them: punctuation, case, unknown words and gaps."""

import pytest

from experiments.data.tokenizers import CharacterTokenizer, WordTokenizer
from experiments.data.vocabulary import SPECIALS, Vocabulary
from experiments.data.words import SPACED, WORDS
from experiments.tasks.prediction import placeholder, read_sentence, word_numbers

WORD_LIST = ("the", "girl", "sees", "Jane", "I", "!", "well-known")
TOKENIZER = WordTokenizer(Vocabulary((*SPECIALS, *WORD_LIST)), WORDS)


def read(text, **options):
    sentence = read_sentence(TOKENIZER, text, longest=6, **options)
    return sentence.tokens(TOKENIZER), sentence


@pytest.mark.parametrize(
    "text, words",
    [
        ("the girl sees Jane", "the girl sees Jane"),
        ("The girl sees JANE.", "the girl sees Jane"),
        ('"The girl", (sees) Jane ...', "the girl sees Jane"),
        ("the girl!?", "the girl !"),
        ("Well-Known!", "well-known !"),
    ],
)
def test_case_and_punctuation(text, words):
    tokens, sentence = read(text)
    assert tokens == words.split()
    assert not sentence.unknown and not sentence.note(TOKENIZER)


@pytest.mark.parametrize(
    "text, words",
    [
        ("👩‍👩‍👧‍👦 sees 🇫🇷", "👩‍👩‍👧‍👦 sees 🇫🇷"),
        ("girl👍🏽! (❤️), Jane", "girl 👍🏽 ! ❤️ Jane"),
        ("I + I = → …", "I + I = →"),
        ("\u200fبيت cafe\u0301, \ufeffJane", "بيت cafe\u0301 Jane"),
        ("</script>", "< script >"),
    ],
)
def test_symbols_are_tokens(text, words):
    tokens, sentence = read(text)
    assert tokens == words.split()
    assert {*sentence.unknown.values()} == {*tokens} - {*WORD_LIST}


def test_words_are_counted_as_typed():
    # The dash and the dots are no tokens, and "Jane!" is two.
    assert word_numbers(TOKENIZER, 'the "girl" - sees ... zebra Jane!') == [0, 1, 3, 5, 6, 6]


def test_unknown_words_are_read_as_a_name():
    tokens, sentence = read("The zebra, sees girll")
    assert tokens == ["the", "zebra", "sees", "girll"]
    assert sentence.unknown == {1: "zebra", 3: "girll"}
    assert TOKENIZER.decode(sentence.ids) == "the Jane sees Jane"
    words = "'zebra', 'girll' (similar to 'girl')"
    assert sentence.note(TOKENIZER) == f"not in the vocabulary, read as 'Jane': {words}"
    assert sentence.note(TOKENIZER, is_copied=True) == f"not in the vocabulary, copied: {words}"


def test_placeholder_of_a_vocabulary_without_names_is_the_rarest_word():
    assert placeholder(Vocabulary((*SPECIALS, "I", "jump", "left"))) == "left"


@pytest.mark.parametrize("text", ["the _ sees _", "The ___, sees _."])
def test_gaps(text):
    sentence = read_sentence(TOKENIZER, text, longest=6, gap=99)
    the, sees = (TOKENIZER.vocabulary.ids[word] for word in ("the", "sees"))
    assert sentence.ids == [the, 99, sees, 99]


def test_place_of_an_unknown_word_after_a_gap():
    assert read_sentence(TOKENIZER, "the _ zebra", longest=6, gap=99).unknown == {2: "zebra"}


@pytest.mark.parametrize(
    "text, message",
    [
        ("...", "the line has no word"),
        (" ", "the line is empty"),
        ("the " * 7, "the line has 7 tokens, and the model reads at most 6"),
    ],
)
def test_invalid_sentence_raises(text, message):
    with pytest.raises(ValueError, match=message):
        read(text)


def test_other_tokenizers_read_the_text_as_it_is():
    letters = CharacterTokenizer.of(["ab,_"])
    assert read_sentence(letters, "a,_b", longest=6).ids == letters.encode("a,_b")
    spaced = WordTokenizer(TOKENIZER.vocabulary, SPACED)
    assert read_sentence(spaced, "girl the", longest=6).ids == spaced.encode("girl the")

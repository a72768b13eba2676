"""The word tokenizer and its inverse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.data.tokenizers import WHOLE, Vocabulary, WordTokenizer, detokenize, tokenize


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("l'Afrique", ["l'", "Afrique"]),
        ("elle n'a pas mangé", ["elle", "n'", "a", "pas", "mangé"]),
        ("aux États-Unis", ["aux", "États-Unis"]),
        ("qu'il l'attend", ["qu'", "il", "l'", "attend"]),
        ("", []),
    ],
)
def test_tokens_of(text: str, tokens: list[str]) -> None:
    assert tokenize(text) == tokens
    assert detokenize(tokens) == text


_WORD = st.text("abcéœ-XY", min_size=1, max_size=6)
_TOKEN = st.tuples(st.sampled_from(["", "l'", "qu'", "d'"]), _WORD)


@given(st.lists(_TOKEN, max_size=9))
def test_detokenize_inverts_tokenize(words: list[tuple[str, str]]) -> None:
    text = " ".join(elided + word for elided, word in words)
    assert detokenize(tokenize(text)) == text


def test_an_unknown_class_is_called_a_class():
    tokenizer = WordTokenizer(Vocabulary.of([["good film"], ["bad film"]]), WHOLE)
    with pytest.raises(ValueError, match=r"the class 'good flm' is .* mean 'good film'\?"):
        tokenizer.encode("good flm")

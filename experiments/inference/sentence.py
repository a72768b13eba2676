"""Sentences as a person types them, with punctuation and with words that a vocabulary lacks."""

import re
from collections.abc import Container, Iterator
from difflib import get_close_matches
from itertools import takewhile
from typing import NamedTuple
from unicodedata import category

from experiments.data.tokenizers import SPECIALS, Tokenizer, Vocabulary, WordTokenizer

EDGES = re.compile(r"(\W*)(.*\w)?(.*)", re.DOTALL)  # signs, a word, signs
SIMILAR = 0.8  # least similarity of a known word that is suggested, as in `difflib`


class Sentence(NamedTuple):
    """A sentence as a model reads it.

    Attributes:
        ids: of its tokens.
        unknown: words that the vocabulary lacks, by their places in `ids`.
        placeholder: the known word that is read in place of each.
    """

    ids: list[int]
    unknown: dict[int, str]
    placeholder: str = ""

    def note(self, tokenizer: Tokenizer, *, is_copied: bool = False) -> str:
        """Return a sentence about the unknown words, "" if there are none."""
        if not self.unknown:
            return ""
        words = []
        for word in self.unknown.values():
            near = get_close_matches(word, tokenizer.vocabulary.ids, n=1, cutoff=SIMILAR)
            words.append(repr(word) + "".join(f" (similar to {each!r})" for each in near))
        verb = "copied" if is_copied else f"read as {self.placeholder!r}"
        return f"not in the vocabulary, {verb}: {', '.join(words)}"

    def tokens(self, tokenizer: Tokenizer) -> list[str]:
        """Return the tokens, with the unknown words as they were typed."""
        read = enumerate(self.ids)
        return [self.unknown.get(place, tokenizer.token(number)) for place, number in read]


def read_sentence(
    tokenizer: Tokenizer, text: str, *, longest: int, gap: int | None = None
) -> Sentence:
    """Read a text as a person types it.

    Of a vocabulary of words, a word that is known in another case only is read in that case,
    punctuation and symbols are split off, unknown punctuation is left out, and an unknown word or
    symbol, such as an emoji, is replaced by a placeholder.

    Args:
        tokenizer: of the model.
        text: a line.
        longest: number of tokens that the model reads.
        gap: the id of each `_`, also of several without a space; None if these are text.

    Raises:
        ValueError: a text without a token, one that is too long, or an unknown character.
    """
    ids, unknown, name = [], {}, ""
    for number, part in enumerate([text] if gap is None else re.split("_+", text)):
        if number:
            ids.append(gap)
        if isinstance(tokenizer, WordTokenizer):
            name = placeholder(tokenizer.vocabulary)
            for word in _split(tokenizer, part):
                if word not in tokenizer.vocabulary.ids:
                    unknown[len(ids)] = word
                ids.append(tokenizer.vocabulary.ids.get(word, tokenizer.vocabulary.ids[name]))
        else:
            ids += tokenizer.read(part)
    if not ids:
        raise ValueError("the line has no word" if text.strip() else "the line is empty")
    if len(ids) > longest:
        raise ValueError(f"the line has {len(ids)} tokens, and the model reads at most {longest}")
    return Sentence(ids, unknown, name)


def word_numbers(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the number of the typed word of each token that `read_sentence` reads, from 0."""
    if isinstance(tokenizer, WordTokenizer):
        words = enumerate(tokenizer.words(text))
        return [number for number, word in words for _ in _split(tokenizer, word)]
    return tokenizer.word_numbers(tokenizer.read(text))


def _split(tokenizer: WordTokenizer, text: str) -> Iterator[str]:
    """Yield the words of a text, in the case of the vocabulary, and its signs."""
    known, respell = tokenizer.vocabulary.ids, tokenizer.vocabulary.respell
    for typed in tokenizer.tokens.tokenize(text):
        if respell(typed) in known:
            yield respell(typed)
            continue
        before, word, after = EDGES.fullmatch(typed).groups()
        marks = "".join(takewhile(lambda sign: category(sign)[0] == "M", after))
        yield from _signs(known, before)
        if word:
            yield respell(word + marks)
        yield from _signs(known, after.removeprefix(marks))


def _signs(known: Container[str], text: str) -> Iterator[str]:
    """Yield the known signs of a text, and what is neither punctuation nor invisible."""
    parts = (
        f" {sign} " if sign in known else " " if category(sign)[0] == "P" else sign for sign in text
    )
    for run in "".join(parts).split():
        if any(category(sign) not in ("Cc", "Cf") for sign in run):
            yield run


def placeholder(vocabulary: Vocabulary) -> str:
    """Return the most frequent capitalized word, which is a name, or else the rarest word."""
    words = vocabulary.words[len(SPECIALS) :]
    return next((word for word in words if word[:1].isupper() and len(word) > 1), words[-1])

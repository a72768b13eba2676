"""Predictions: how a model reads what a person types, and its answers."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from os.path import expanduser
from typing import Any, NamedTuple
from unicodedata import category

import numpy as np
from PIL import Image

from experiments.data.tokenizers import Tokenizer, WordTokenizer

REPLACEMENT = "\ufffd"  # in place of bytes that are not UTF-8
EDGES = re.compile(r"(\W*)(.*\w)?(.*)", re.DOTALL)  # signs, a word, signs
SIMILAR = 0.8  # least similarity of a known word that is suggested, as in `difflib`


class Prediction(NamedTuple):
    """The answer of a model to one line."""

    text: Iterable[str] = ()  # the answer, in pieces that are printed as they come
    details: Callable[[], Mapping[str, Any]] = dict  # returns the answer as JSON, if that is asked
    note: str = ""  # a sentence for standard error, such as a list of unknown words
    error: str = ""  # the reason why there is no answer
    # Of an encoder: for each place among the labels of `Task.example`, or None for the whole input,
    # answers with their probabilities, the most probable first.
    choices: Sequence[tuple[int | None, Sequence[tuple[str, float]]]] = ()


def predictions(
    lines: Sequence[str],
    read: Callable[[str], Any],
    answer: Callable[[list[Any]], Iterable[Prediction]],
) -> Iterator[Prediction]:
    """Yield the prediction of each line; it is empty for a blank line that cannot be read.

    `read` converts a line to an input of the model, or raises a ValueError in one sentence.
    """
    inputs, errors = [], {}
    for number, line in enumerate(lines):
        try:
            if REPLACEMENT in line:
                raise ValueError("the line has bytes that are no UTF-8")
            inputs.append(read(line))
        except ValueError as error:
            errors[number] = Prediction(error=str(error) if str(line).strip() else "")
    answers = iter(answer(inputs))
    for number in range(len(lines)):
        yield errors[number] if number in errors else next(answers)


class Sentence(NamedTuple):
    """A sentence, or an image, as a model reads it."""

    ids: Any  # of its tokens; or the image
    unknown: Mapping[int, str] = {}  # words that the vocabulary lacks, by their places in `ids`
    text: str = ""  # as it was typed
    words: Sequence[int] = ()  # of a vocabulary of words, the number of the typed word of each id

    def note(self, tokenizer: Tokenizer, *, is_copied: bool = False) -> str:
        """Return a sentence about the unknown words, "" if there are none."""
        if not self.unknown:
            return ""
        words = []
        for word in self.unknown.values():
            near = get_close_matches(word, tokenizer.ids, n=1, cutoff=SIMILAR)
            words.append(repr(word) + "".join(f" (similar to {known!r})" for known in near))
        verb = "copied" if is_copied else f"read as {tokenizer.placeholder!r}"
        return f"not in the vocabulary, {verb}: {', '.join(words)}"

    def tokens(self, tokenizer: Tokenizer) -> list[str]:
        """Return the tokens, with the unknown words as they were typed."""
        read = enumerate(self.ids)
        return [self.unknown.get(place) or tokenizer.token(number) for place, number in read]


def read_sentence(
    tokenizer: Tokenizer, text: str, *, longest: int, gap: int | None = None
) -> Sentence:
    """Read a text as a person types it.

    Of a vocabulary of words, a word that is known in another case only is read in that case,
    punctuation and symbols are split off, unknown punctuation is left out, and an unknown word or
    symbol, such as an emoji, is replaced by a placeholder.

    A text of more than `longest` tokens, or of none, is a ValueError. `gap` is the id of each `_`,
    also of several without a space; if it is None, these are text.
    """
    ids, unknown, words = [], {}, []
    for number, part in enumerate([text] if gap is None else re.split("_+", text)):
        ids += [gap] if number else []
        if not isinstance(tokenizer, WordTokenizer):
            ids += tokenizer.read(part)
            continue
        known, name = tokenizer.ids, tokenizer.placeholder
        for place, typed in enumerate(tokenizer.words(part)):
            for word in _split(tokenizer, typed):
                if word not in known:
                    unknown[len(ids)] = word
                ids.append(known.get(word, known[name]))
                words.append(place)
    if not ids:
        raise ValueError("the line has no word" if text.strip() else "the line is empty")
    if len(ids) > longest:
        raise ValueError(f"the line has {len(ids)} tokens, and the model reads at most {longest}")
    return Sentence(ids, unknown, text, words)


def _split(tokenizer: WordTokenizer, typed: str) -> Iterator[str]:
    """Yield a word in the case of the vocabulary, and its signs."""
    known, respell = tokenizer.ids, tokenizer.respell
    if respell(typed) in known:
        yield respell(typed)
        return
    before, word, after = EDGES.fullmatch(typed).groups()
    marks = "".join(takewhile(lambda sign: category(sign)[0] == "M", after))
    yield from _signs(known, before)
    if word:
        yield respell(word + marks)
    yield from _signs(known, after.removeprefix(marks))


def _signs(known: Mapping[str, int], text: str) -> Iterator[str]:
    """Yield the known signs of a text, and what is neither punctuation nor invisible."""
    spaced = ""
    for sign in text:
        spaced += f" {sign} " if sign in known else " " if category(sign)[0] == "P" else sign
    for run in spaced.split():
        if any(category(sign) not in ("Cc", "Cf") for sign in run):
            yield run


def read_image(path: str, shape: tuple[int, int, int]) -> np.ndarray:
    """Read an image file as float32 `[height, width, channels]` from 0 (black) to 1 (white).

    Nothing is inverted: for a model of `digits`, whose ink is 1, ink must be white on black. An
    image of another size, or of more than 8 bits, is a ValueError.
    """
    try:
        with Image.open(expanduser(path.strip())) as image:
            size, mode = image.size, image.mode
            pixels = np.asarray(image.convert("L" if shape[2] == 1 else "RGB"), np.float32)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # Syntax: a damaged PNG
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
    if size != shape[1::-1]:
        raise ValueError(
            f"{path} has {size[0]} x {size[1]} pixels, and the model reads {shape[1]} x {shape[0]}"
        )
    if mode.startswith(("I", "F")):  # which `convert` cuts off at 255
        raise ValueError(f"{path} has more than 8 bits per channel: convert it to 8 bits")
    return (pixels / 255).reshape(shape)

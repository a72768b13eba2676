"""--mode=translate: one line of output per line of input, and errors."""

import json

import pytest

KNOWN = "the girl was happy"  # words of the tiny corpus

pytestmark = pytest.mark.usefixtures("trained")


def test_one_translation_per_line(knock):
    sentences = f"{KNOWN}\n\n{KNOWN} girll\n \r\n{KNOWN}\r\n"
    status, output, error = knock("--mode=translate", given=sentences)
    assert status == 1
    first, *middle, last = output.split("\n")[:-1]
    assert (first, middle) == (last, ["", "", ""])
    words = "line 3: the word 'girll' is not in the vocabulary; did you mean 'girl'?\n"
    assert error == words


def test_details_are_json_lines(knock):
    flags = "--mode=translate", "--config.decoding.details=True"
    status, output, error = knock(*flags, given=f"{KNOWN}\n\ngirll")
    assert (status, error.startswith("line 3: the word 'girll'")) == (1, True)
    told = [json.loads(line) for line in output.splitlines()]
    assert told[0]["source"] == [*KNOWN.split(), "<eos>"]
    assert len(told[0]["translations"]) == 1
    assert told[1:] == [{"source": [], "translations": []}] * 2


def test_invalid_utf8_is_reported(knock):
    status, output, error = knock("--mode=translate", given=b"the \xff girl\n")
    assert (status, output) == (1, "\n")
    assert error == "line 1: the sentence has bytes that are no UTF-8\n"


def test_capital_letters_and_punctuation(knock):
    _, plain, _ = knock("--mode=translate", given=f"{KNOWN}\n")
    typed = KNOWN.capitalize() + "."
    assert knock("--mode=translate", given=f"{typed}\n") == (0, plain, "")


def test_sentence_longer_than_the_model_is_refused(knock):
    status, _, error = knock("--mode=translate", given="the " * 48)
    assert status == 1
    assert "line 1: the sentence has 48 tokens, and the model reads at most 47" in error


def test_success_prints_only_the_translation(knock):
    status, output, error = knock("--mode=translate", given=f"{KNOWN}\n")
    assert (status, error) == (0, "")
    assert len(output.splitlines()) == 1

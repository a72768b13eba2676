"""A trained run answers line for line, or says why it cannot."""

import json

import pytest

KNOWN = "the girl was happy"  # words that even the tiny corpus has

pytestmark = pytest.mark.usefixtures("trained")


def test_translate_answers_line_for_line(knock):
    sentences = f"{KNOWN}\n\n{KNOWN} girll\n \r\n{KNOWN}\r\n"
    status, output, error = knock("--mode=translate", given=sentences)
    assert status == 1
    first, *middle, last = output.split("\n")[:-1]
    assert (first, middle) == (last, ["", "", ""])
    words = "line 3: the word 'girll' is not in the vocabulary; did you mean 'girl'?\n"
    assert error == words


def test_every_line_is_json_where_details_are_asked_for(knock):
    flags = "--mode=translate", "--config.decoding.details=True"
    status, output, error = knock(*flags, given=f"{KNOWN}\n\ngirll")
    assert (status, error.startswith("line 3: the word 'girll'")) == (1, True)
    told = [json.loads(line) for line in output.splitlines()]
    assert told[0]["source"] == [*KNOWN.split(), "<eos>"]
    assert len(told[0]["translations"]) == 1
    assert told[1:] == [{"source": [], "translations": []}] * 2


def test_bytes_that_are_no_text_are_told(knock):
    status, output, error = knock("--mode=translate", given=b"the \xff girl\n")
    assert (status, output) == (1, "\n")
    assert error == "line 1: the sentence has bytes that are no UTF-8\n"


def test_translate_reads_a_sentence_as_people_type_it(knock):
    _, plain, _ = knock("--mode=translate", given=f"{KNOWN}\n")
    typed = KNOWN.capitalize() + "."
    assert knock("--mode=translate", given=f"{typed}\n") == (0, plain, "")


def test_translate_refuses_a_sentence_longer_than_the_model(knock):
    status, _, error = knock("--mode=translate", given="the " * 48)
    assert status == 1
    assert "line 1: the sentence has 48 tokens, and the model reads at most 47" in error


def test_translate_succeeds_quietly(knock):
    status, output, error = knock("--mode=translate", given=f"{KNOWN}\n")
    assert (status, error) == (0, "")
    assert len(output.splitlines()) == 1

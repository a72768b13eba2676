"""A trained run answers line for line, or says why it cannot."""

import pytest

KNOWN = "the girl was happy"  # words that even the tiny corpus has

pytestmark = pytest.mark.usefixtures("trained")


def test_translate_answers_line_for_line(knock):
    sentences = f"{KNOWN}\n\n{KNOWN} girll\n"
    status, output, error = knock("--mode=translate", given=sentences)
    assert status == 1
    assert len(output.splitlines()) == 3
    assert output.splitlines()[1:] == ["", ""]
    assert "line 2: the sentence is empty" in error
    assert "line 3: the word 'girll' is not in the vocabulary; did you mean 'girl'?" in error


def test_translate_reads_a_sentence_as_people_type_it(knock):
    _, plain, _ = knock("--mode=translate", given=f"{KNOWN}\n")
    typed = KNOWN.capitalize() + "."
    assert knock("--mode=translate", given=f"{typed}\n") == (0, plain, "")


def test_translate_refuses_a_sentence_longer_than_the_model(knock):
    status, _, error = knock("--mode=translate", given="the " * 48)
    assert status == 1
    assert "line 1: the sentence has 48 words, and the model reads at most 47" in error


def test_translate_succeeds_quietly(knock):
    status, output, error = knock("--mode=translate", given=f"{KNOWN}\n")
    assert (status, error) == (0, "")
    assert len(output.splitlines()) == 1

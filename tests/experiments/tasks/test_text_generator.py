"""Continuations: prompt and answer together are the text, also where one token ends a word."""

import pytest

from experiments.config.data import TextPart
from experiments.data.examples import SentencePair
from experiments.data.subwords import Subwords
from experiments.data.tokenizers import BOS, EOS, WORDS, Characters, Words
from experiments.tasks.language_model import Continuation
from tests.experiments.data.corpora import learn

TEXT = "the cat sees l'Afrique and the queens"


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [(Subwords(), [BOS], [EOS]), (Words(WORDS), [BOS], [EOS]), (Characters(), [], [])],
)
def test_prompt_and_continuation_are_the_text(text, begin, end, tmp_path):
    config = TextPart(kind="char", size=275)  # no subword contains a blank and a letter
    tokenizer = learn(text, config, [SentencePair(TEXT, TEXT)], tmp_path).source
    ids = tokenizer.encode(TEXT)
    for place in range(len(ids)):
        continuation = Continuation(tokenizer, (*begin, *ids[:place]))
        assert tokenizer.decode(ids[:place]) + continuation.decode([*ids[place:], *end]) == TEXT


class Bytes:
    """Decodes the byte 9 as a character, but a text with the byte 8 as one mark for each byte."""

    def decode(self, ids):
        return "".join("?" if 8 in ids else "e" for _ in ids)


def test_bytes_that_are_no_text_do_not_repeat_the_prompt():
    assert Continuation(Bytes(), (9, 9)).decode([9]) == "e"
    assert Continuation(Bytes(), (9, 9)).decode([8]) == "?"

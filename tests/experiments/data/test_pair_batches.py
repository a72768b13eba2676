"""Sentence pairs that are too long: an error, or dropped and counted."""

import pytest

from configs import multi30k
from experiments.config import Config
from experiments.data.pair_batches import PairBatches
from experiments.data.pairs import SentencePair
from experiments.data.tokenizers import Tokenizers, WordTokenizer
from experiments.data.vocabulary import SPECIALS, Vocabulary
from experiments.data.words import SPACED
from experiments.errors import UsageError

SHORT = [SentencePair("a b", "b"), SentencePair("a b b a", "b")]  # 3 and 5 positions with EOS
LONG, LONGER = SentencePair("b", "b a b a b"), SentencePair("a b a a b a", "a")  # 6 and 7


def batches(row_length=0, **data):
    config = multi30k.get_config("tiny")
    config.model.max_length = 6
    config.batch.update({"row_length": row_length, "bucket_lengths": (6,)})
    config.data.update(data)
    tokenizer = WordTokenizer(Vocabulary((*SPECIALS, "a", "b")), SPACED)
    return PairBatches(Config.read(config.to_dict()), Tokenizers(tokenizer, tokenizer))


def test_error_describes_the_longest_pair_and_the_remedies():
    words = (
        "the train split needs 7 positions, for 'a b a a b a': raise model.max_length=6, or leave"
    )
    with pytest.raises(UsageError, match=words):
        batches().encode("train", [*SHORT, LONGER, LONG])
    with pytest.raises(UsageError, match=r"the test split needs 7 .*: raise model.max_length=6$"):
        batches(faults="drop").encode("test", [*SHORT, LONGER])


@pytest.mark.parametrize(
    ("row_length", "kept", "told"),
    [
        (0, [*SHORT, LONG], "train: 1 of 4 pairs left out: more than 6"),
        (5, SHORT, "2 of 4 pairs left out"),
    ],
)
def test_dropped_pairs_are_counted(row_length, kept, told, capsys):
    pairs = [LONGER, *SHORT, LONG]
    assert batches(row_length=row_length, faults="drop").fitting(pairs) == kept
    assert told in capsys.readouterr().err
    assert batches(row_length=row_length).fitting(pairs) == pairs
    assert batches(faults="drop").fitting(SHORT) == SHORT
    assert capsys.readouterr().err == ""


def test_dropping_all_pairs_raises():
    with pytest.raises(UsageError, match="no pair of the train split is left: all have more"):
        batches(faults="drop").fitting([LONGER])

from types import SimpleNamespace

import pytest

from experiments.analysis.collect import Example
from experiments.analysis.inputs import own_examples, read_pairs
from experiments.analysis.own_text import read_gold
from experiments.data.examples import SentencePair
from experiments.errors import UsageError


def test_sentences_and_pairs(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("the girl\tla fille\nhe\n", encoding="utf-8-sig")
    assert read_pairs(path) == [SentencePair("the girl", "la fille"), SentencePair("he", "")]
    path.write_text("he\u2028\x0c sees\n\n", encoding="utf-8")  # no ends of lines
    assert read_pairs(path) == [SentencePair("he\u2028\x0c sees"), SentencePair("")]


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"mine\.tsv cannot be read"):
        read_pairs(path)


def test_missing_targets_are_generated_and_faults_name_their_line(tmp_path):
    asked = []

    def example(state, source, target):
        asked.append(target)
        if source == "?":
            raise ValueError("the line has no word")

    task = SimpleNamespace(example=example)
    with pytest.raises(UsageError, match="--file=x, line 3: the line has no word"):
        own_examples(task, None, "x", [SentencePair(*each) for each in ("ab", ("c",), ("?",))])
    assert asked == ["b", None, None]


def test_gold_of_a_task_with_one_text(tmp_path):
    task = SimpleNamespace(config=SimpleNamespace(task="language_model"))
    example = Example({}, {"decoder": ["a"]}, {})
    with pytest.raises(UsageError, match="--gold is for translation, and task='language_model'"):
        read_gold(task, tmp_path, 0, [SentencePair("a", "b")] * 2, [example] * 2)

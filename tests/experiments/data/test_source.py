"""Prepared data on disk: splits, text and ids are written once, in bounded memory."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import chex
import pytest

from configs import multi30k
from experiments.config import Config
from experiments.data import source
from experiments.data.source import Splits, TextStore, store_ids, store_text
from experiments.data.subwords import SubwordTokenizer
from experiments.data.tokenizers import (
    SPACED,
    SPECIALS,
    EncodedPair,
    SentencePair,
    Tokenizers,
    WordTokenizer,
)
from experiments.errors import UsageError
from experiments.files import PART
from experiments.prepare import beam_map
from experiments.tasks.translation import Translation

SHORT = [SentencePair("a b", "b"), SentencePair("a b b a", "b")]  # 3 and 5 positions with the end
LONG, LONGER = SentencePair("b", "b a b a b"), SentencePair("a b a a b a", "a")  # 6 and 7
LETTERS = WordTokenizer((*SPECIALS, "a", "b"), SPACED)
BOTH = Tokenizers(LETTERS, LETTERS)
PAIRS = [SentencePair("a b", "b", "0-0"), SentencePair('b\t"é\n', "a", ""), *SHORT]


def test_text_is_read_in_any_order(tmp_path):
    texts = store_text(tmp_path, lambda: iter(PAIRS))
    assert [*texts] == texts[:] == PAIRS and len(texts) == 4
    assert texts[-1] == PAIRS[-1] and texts[1:3] == PAIRS[1:3]
    assert texts.take([2, 0, 2]) == [PAIRS[2], PAIRS[0], PAIRS[2]]
    assert texts.fingerprint != store_text(tmp_path, lambda: PAIRS[:3]).fingerprint
    with pytest.raises(IndexError):
        texts[4]


def test_text_with_a_name_is_read_once(tmp_path):
    first = store_text(tmp_path, lambda: PAIRS, name="train")
    again = store_text(tmp_path, lambda: pytest.fail("it was read again"), name="train")
    assert [*again] == PAIRS and again.fingerprint == first.fingerprint
    assert [*store_text(tmp_path, lambda: SHORT, name="test")] == SHORT
    first.path.unlink()
    assert [*store_text(tmp_path, lambda: PAIRS, name="train")] == PAIRS


def test_text_and_ids_are_stored_by_several_writers_at_once(tmp_path):
    def write():
        texts = store_text(tmp_path, lambda: PAIRS, name="train")
        ids = store_ids(tmp_path, store_text(tmp_path, lambda: SHORT), BOTH)
        return [*texts], ids.lengths.tolist()

    with ThreadPoolExecutor(4) as pool:
        results = [*pool.map(lambda _: write(), range(8))]
    assert results == [(PAIRS, [[3, 2], [5, 2]])] * 8
    assert not [*tmp_path.rglob(f"*{PART}*")]


def test_what_fails_midway_leaves_nothing(tmp_path):
    def broken():
        yield PAIRS[0]
        raise UsageError("line 2")

    with pytest.raises(UsageError, match="line 2"):
        store_text(tmp_path, broken)
    assert not [*(tmp_path / "text").iterdir()]


def test_ids_and_lengths_are_those_of_the_text(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "CHUNK", 2)
    texts = store_text(tmp_path, lambda: [*SHORT, LONG])
    swapped, both = WordTokenizer((*SPECIALS, "b", "a"), SPACED), [[3, 2], [5, 2], [2, 6]]
    alone = Tokenizers(LETTERS, None)
    for tokenizers in (BOTH, Tokenizers(swapped, LETTERS), alone, BOTH):
        ids = store_ids(tmp_path, texts, tokenizers)
        assert ids.lengths.tolist() == ([[3], [5], [2]] if tokenizers is alone else both)
        expected = [[*map(list, pair)] for pair in map(tokenizers.encode, texts)]
        assert [[*map(list, pair)] for pair in ids] == expected
    assert len([*(tmp_path / "ids").iterdir()]) == 3


def test_beam_computes_the_same_ids(tmp_path, monkeypatch):
    pytest.importorskip("apache_beam", reason="the extra [prepare] is not installed")
    monkeypatch.setattr(source, "CHUNK", 2)
    results = []
    beam = partial(beam_map, tmp_path / "beam" / "ids", [])
    for name, map_function in (("plain", map), ("beam", beam)):
        texts = store_text(tmp_path / name, lambda: [*SHORT, LONG, LONGER, *SHORT])
        ids = store_ids(tmp_path / name, texts, Tokenizers(LETTERS, None), 2, map_function)
        results.append({path.name: path.read_bytes() for path in ids.path.iterdir()})
        assert [*ids.path.parent.iterdir()] == [ids.path]  # no temporary file is left
    assert results[0] == results[1] and len(results[0]) == 3


def test_a_second_run_reads_no_text(tmp_path, monkeypatch):
    config = Config.read(multi30k.get_config("tiny").to_dict())
    before = Translation.prepare(config, tmp_path)
    first = before.training_batches()[0]
    monkeypatch.setattr(TextStore, "take", lambda *_: pytest.fail("a text is read"))
    monkeypatch.setattr(SubwordTokenizer, "encode", lambda *_: pytest.fail("a text is encoded"))
    task = Translation.prepare(config, tmp_path)
    assert task.tokenizers == before.tokenizers
    chex.assert_trees_all_equal(task.training_batches()[0], first)


@pytest.mark.parametrize(("row_length", "kept"), [(0, [*SHORT, LONG]), (5, SHORT)])
def test_long_pairs_raise_or_are_dropped_with_a_message(row_length, kept, tmp_path, capsys):
    def task_of(split, faults):
        tree = multi30k.get_config("tiny").to_dict()
        tree["model"]["max_length"], tree["data"]["faults"] = 6, faults
        tree["batch"] |= {"bucket_lengths": (6,), "packed": True, "row_length": row_length}
        config = Config.read(tree)
        splits = Splits(config.data, tmp_path)
        splits[split] = store_text(tmp_path, lambda: [LONGER, *SHORT, LONG])
        return Translation(config, BOTH, splits)

    with pytest.raises(UsageError, match=r"the train .* 7 positions, for 'a b a a b a': raise mod"):
        task_of("train", "refuse").ids("train")
    with pytest.raises(UsageError, match=r"the test split needs 7 .*: raise model.max_length=6$"):
        task_of("test", "drop").ids("test")
    task = task_of("train", "drop")
    assert [*task.examples("train")] == kept
    ids = [EncodedPair(*map(list, pair)) for pair in task.ids("train")]
    assert ids == [*map(BOTH.encode, kept)]
    assert f"train: {4 - len(kept)} of 4 pairs left out" in capsys.readouterr().err

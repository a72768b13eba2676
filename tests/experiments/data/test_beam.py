"""Preparation by Apache Beam: the same files as without."""

import pytest

from experiments.data import store
from experiments.data.examples import SentencePair
from experiments.data.store import store_ids, store_text
from experiments.data.tokenizers import SPACED, SPECIALS, Tokenizers, Vocabulary, WordTokenizer
from tests.experiments.data.corpora import data_part, load_split
from tests.experiments.data.prepared import NAME, prepare

beam = pytest.importorskip("apache_beam", reason="the extra [prepare] is not installed")

PAIRS = [("a b", "b"), ("b", "a a b"), ("a b b a", "a"), ("b b", "b a"), ("a", "a")]
LETTERS = WordTokenizer(Vocabulary((*SPECIALS, "a", "b")), SPACED)


@pytest.mark.parametrize("sides, max_ids", [(2, None), (1, None), (1, 2)])
def test_ids_are_the_same_bytes(sides, max_ids, tmp_path, monkeypatch):
    from experiments.data.beam import BeamMap

    monkeypatch.setattr(store, "CHUNK", 2)
    tokenizers, found = Tokenizers(LETTERS, LETTERS if sides == 2 else None), []
    for name, map_function in (("plain", map), ("beam", BeamMap(tmp_path / "beam" / "ids"))):
        texts = store_text(tmp_path / name, lambda: [SentencePair(*pair) for pair in PAIRS])
        ids = store_ids(tmp_path / name, texts, tokenizers, max_ids, map_function)
        found.append({path.name: path.read_bytes() for path in ids.path.iterdir()})
        assert [*ids.path.parent.iterdir()] == [ids.path]  # no temporary file is left
    plain, by_beam = found
    assert plain == by_beam and len(plain) == 3


def test_dataset_of_tfds_is_prepared_without_tensorflow(tmp_path):
    prepare(tmp_path, {"train": PAIRS}, create=beam.Create)
    config = data_part("tfds", {"path": str(tmp_path), "dataset": NAME})
    assert [pair[:2] for pair in load_split(config, "train", None)] == PAIRS

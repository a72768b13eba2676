"""BPE dropout: its rate, decoding to the same text, and exact resumption."""

from collections import Counter

import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments.data.batching import Buckets, FreshEpochs
from experiments.data.pairs import SentencePair
from experiments.data.subword_dropout import PairDropout, SubwordDropout
from experiments.data.tokenizers import Subwords

PAIRS = [
    SentencePair(f"{number} dogs run over the  meadow", f"{number} Hunde rennen über die Wiese")
    for number in ("two", "three", "seven", "ten", "no", "many", "some", "old", "the", "red")
]


def learned(pairs, size, cache, joint=True):
    subwords = {"kind": "bpe", "size": size, "joint": joint}
    return Subwords().learn(ConfigDict({"subwords": subwords}), pairs, cache)


@pytest.fixture(scope="module", params=[True, False], ids=["joint", "separate"])
def tokenizers(tmp_path_factory, request):
    return learned(PAIRS, 300, tmp_path_factory.mktemp("cache"), request.param)


def test_rate_zero_equals_sentencepiece(tokenizers):
    segment = SubwordDropout(tokenizers.source, 0.0)
    random = np.random.default_rng(0)
    # Merges overlap here, so their order matters.
    texts = ["".join(random.choice([*" overthdgs"], 30)) for _ in range(100)]
    for text in [
        *texts,
        *(pair.source for pair in PAIRS),
        "",
        " ",
        "ten  dogs ",
        "naïve 犬",
        "<unk> <bos> <0x41>",
        "a▁b",
    ]:
        assert segment(text, np.random.default_rng(0)) == tokenizers.source.encode(text)


def test_each_merge_is_dropped_with_the_given_rate(tmp_path):
    """The word needs two merges, and the second depends on the first."""
    tokenizer = learned([SentencePair("ab", "ab")] * 9, 3 + 1 + 256 + 3 + 2, tmp_path).source
    segment, random = SubwordDropout(tokenizer, 0.25), np.random.default_rng(0)
    tokens = [tuple(map(tokenizer.token, segment("ab", random))) for _ in range(4_000)]
    shares = {split: number / 4_000 for split, number in Counter(tokens).items()}
    assert shares == {
        ("_", "a", "b"): pytest.approx(0.25, abs=0.02),
        ("_", "ab"): pytest.approx(0.75 * 0.25, abs=0.02),
        ("_ab",): pytest.approx(0.75**2, abs=0.02),
    }


def test_segmentations_depend_on_the_generator_and_decode_to_the_same_text(tokenizers):
    segment = PairDropout(tokenizers, 0.3, longest=99)
    plain = [tokenizers.encode(pair) for pair in PAIRS]
    first, again, other = (segment(PAIRS, plain, np.random.default_rng(i)) for i in (0, 0, 1))
    assert first == again != other
    assert first != plain
    for pair, encoded in zip(PAIRS, first, strict=True):
        assert tokenizers.source.decode(encoded.source) == pair.source
        assert tokenizers.target.decode(encoded.target) == pair.target


def test_too_long_segmentations_are_replaced_by_the_usual_one(tokenizers):
    plain = [tokenizers.encode(pair) for pair in PAIRS]
    found = PairDropout(tokenizers, 0.5, longest=24)(PAIRS, plain, np.random.default_rng(0))
    assert max(pair.length for pair in found) == 24
    kept = [new is old for new, old in zip(found, plain, strict=True)]
    assert any(kept) and not all(kept)


def test_epochs_resume_exactly_without_building_past_ones(tokenizers):
    plain = [tokenizers.encode(pair) for pair in PAIRS]
    segment, made = PairDropout(tokenizers, 0.2, longest=40), []

    def make(random):
        made.append(Buckets(segment(PAIRS, plain, random), (15, 20, 40), 40))
        return made[-1]

    straight = FreshEpochs(make, seed=1)
    states, batches = [], []
    for _ in range(40):
        states.append(straight.get_state())
        batches.append(next(straight))
    lengths = [len(data.plan()) for data in made[:5]]
    assert len({*lengths}) > 1
    start = 0
    for data, length in zip(made[:4], lengths, strict=False):
        rows = [row for batch in batches[start : start + length] for row in batch.source]
        said = sorted(tokenizers.source.decode(row) for row in rows if row.any())
        assert said == sorted(pair.source for pair in PAIRS)
        assert data.pairs != made[0].pairs or data is made[0]
        start += length
    for i in (0, lengths[0] - 1, lengths[0], start - 2):
        made.clear()
        resumed = FreshEpochs(make, seed=1)
        resumed.set_state(states[i])
        for batch in batches[i : i + 2]:
            for ours, theirs in zip(next(resumed), batch, strict=True):
                np.testing.assert_array_equal(ours, theirs)
        assert len(made) <= 2

"""Packed rows contain every token once, and each sequence is scored as if it were alone."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from attention import masks
from attention.modules import EncoderDecoder, LanguageModel, TransformerConfig
from attention.testing import find_leaks
from experiments.data.examples import EncodedExamples, EncodedPair
from experiments.data.packing import pack_batch, pad_batch
from experiments.data.pipeline import PackedRows, ShuffledBatches, SortedBatches
from experiments.data.tokenizers import BOS, EOS, PAD
from experiments.tasks.translation import pair_features
from tests.attention.modules.inputs import filled

SEQUENCES = [[3, 4, 5], [6], [7, 8, 9, 10], [5, 3], [4]]
V = 11


def texts(batch):
    """The sequences in a batch, found by their segments; what is no sequence is padding."""
    found = []
    for inputs, labels, segments, positions in zip(*batch, strict=True):
        padding = segments == 0
        assert {*inputs[padding], *labels[padding]} <= {PAD}
        for segment in range(1, segments.max() + 1):
            here = segments == segment
            assert inputs[here][0] == BOS and labels[here][-1] == EOS
            assert positions[here].tolist() == [*range(here.sum())]
            np.testing.assert_array_equal(inputs[here][1:], labels[here][:-1])
            found.append(labels[here][:-1].tolist())
    return found


def test_a_padded_batch_by_hand():
    batch = pad_batch([EncodedPair([7, 8], [9]), EncodedPair([5], [6, 4, 3])], size=3, length=4)
    assert batch.source.tolist() == [[7, 8, EOS, PAD], [5, EOS, PAD, PAD], [PAD] * 4]
    assert batch.source_lengths.tolist() == [3, 2, 0]
    assert batch.target_inputs.tolist() == [[BOS, 9, PAD, PAD], [BOS, 6, 4, 3], [PAD] * 4]
    assert batch.target_labels.tolist() == [[9, EOS, PAD, PAD], [6, 4, 3, EOS], [PAD] * 4]


def test_a_packed_batch_by_hand():
    batch = pack_batch([[[3, 4, 5], [6]], [], [[7]]], 7)
    assert batch.inputs.tolist() == [[BOS, 3, 4, 5, BOS, 6, PAD], [PAD] * 7, [BOS, 7] + [PAD] * 5]
    assert batch.labels.tolist() == [[3, 4, 5, EOS, 6, EOS, PAD], [PAD] * 7, [7, EOS] + [PAD] * 5]
    assert batch.segments.tolist() == [[1, 1, 1, 1, 2, 2, 0], [0] * 7, [1, 1] + [0] * 5]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 0, 1, 0], [0] * 7, [0, 1] + [0] * 5]
    assert batch.counted.sum() == 3 + 1 + 1 + 3
    assert not np.any(pack_batch([[], []], 5))
    for array in batch:
        assert array.dtype == np.int32


def test_an_epoch_has_every_sequence_once_in_one_shape():
    random = np.random.default_rng(0)
    sequences = [random.integers(3, V, size=random.integers(1, 12)).tolist() for _ in range(97)]
    layout = PackedRows([17], tokens=71)
    windows = ShuffledBatches(EncodedExamples((ids,) for ids in sequences), layout, seed=1)
    num_batches = int(windows.epoch.steps * layout.per_batch)  # of four epochs
    batches = [windows[step] for step in range(num_batches)]
    assert {array.shape for batch in batches for array in batch} == {(4, 17)}
    found = sorted(text for batch in batches for text in texts(batch))
    assert found == sorted(sequences * layout.per_batch)
    measured = [*SortedBatches(EncodedExamples((ids,) for ids in sequences), layout)]
    assert {array.shape for batch in measured for array in batch} == {(4, 17)}
    assert sorted(text for batch in measured for text in texts(batch)) == sorted(sequences)
    assert sum(batch.counted.sum() for batch in measured) == sum(map(len, sequences)) + 97


@functools.cache
def language_model(positions):
    config = TransformerConfig(
        width=10, num_heads=2, num_kv_heads=1, head_width=6, hidden=7, max_length=13,
        encoder_layers=0, decoder_layers=1, positions=positions,
    )  # fmt: skip
    make = LanguageModel.from_config
    model = filled(lambda: make(config, vocab_size=V, rngs=nnx.Rngs(0)))

    @jax.jit
    def score(batch):
        mask = masks.segments(batch.segments)
        return model(batch.inputs, mask=mask, embedding_positions=batch.positions).logits

    return score


@pytest.fixture(scope="module")
def packed():
    batch = pack_batch([SEQUENCES[:2], SEQUENCES[2:4], SEQUENCES[4:]], 9)
    assert len(texts(batch)) == len(SEQUENCES)
    return batch


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_packed_sequences_are_scored_as_each_alone(positions, packed):
    score = language_model(positions)
    scores, compared = score(packed), 0
    for row, segment in np.argwhere(np.arange(1, 9) <= packed.segments.max(1)[:, None]):
        here = packed.segments[row] == segment + 1
        text = packed.labels[row][here][:-1].tolist()
        single = score(pack_batch([[text], [], []], 9))[0, : len(text) + 1]
        np.testing.assert_allclose(scores[row][here], single, rtol=1e-4, atol=1e-5)
        compared += 1
    assert compared == len(SEQUENCES)


def test_no_sequence_hears_its_neighbour(packed):
    score = language_model("learned")
    same = packed.segments[:, :, None] == packed.segments[:, None, :]
    report = find_leaks(
        lambda inputs: score(packed._replace(inputs=inputs)),
        packed.inputs,
        same & np.tri(9, dtype=bool),
        vocab_size=V,
    )
    report.raise_if_failed()
    # A leak would be found: every visible position is attended to.
    assert report.depends.sum() == (same & np.tri(9, dtype=bool)).sum()


PAIRS = [
    EncodedPair(source, target)
    for source, target in zip(SEQUENCES, [[8], [3, 9, 4], [5], [6, 10], [7, 3]], strict=True)
]


def translator(positions):
    config = TransformerConfig(
        width=10, num_heads=2, head_width=4, hidden=7, max_length=13,
        encoder_layers=1, decoder_layers=1, positions=positions,
    )  # fmt: skip
    make, sizes = EncoderDecoder.from_config, {"source_vocab_size": V, "target_vocab_size": V}
    return filled(lambda: make(config, **sizes, rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def paired():
    units = [(PAIRS, np.array(row)) for row in ((0, 1, 4), (2, 3))]
    batch = PackedRows((9, 9), tokens=18).rows(units).read(slice(0, 2))
    assert sorted(batch.source.segments.max(1).tolist()) == [2, 3]
    assert sorted(texts(batch.source)) == sorted(SEQUENCES)
    targets = {tuple(pair.source): pair.target for pair in PAIRS}
    assert texts(batch.target) == [targets[tuple(ids)] for ids in texts(batch.source)]
    return batch


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "relative"])
def test_packed_pairs_are_read_as_each_alone(positions, paired):
    model = translator(positions)
    packed = jax.jit(lambda batch: pair_features(model, batch, None).features)(paired)
    batch = pad_batch(PAIRS, 5, 6)
    alone = jax.jit(lambda batch: pair_features(model, batch, None).features)(batch)
    alone = {tuple(pair.target): row for pair, row in zip(PAIRS, alone, strict=True)}
    for row, segment in np.argwhere(np.arange(1, 9) <= paired.target.segments.max(1)[:, None]):
        here = paired.target.segments[row] == segment + 1
        expected = alone.pop(tuple(paired.target.labels[row][here][:-1].tolist()))
        np.testing.assert_allclose(packed[row][here], expected[: here.sum()], rtol=1e-4, atol=1e-5)
    assert not alone


@pytest.mark.parametrize("side", ["source", "target"])
def test_no_pair_hears_its_neighbour(side, paired):
    model, source, target = translator("sinusoidal"), paired.source, paired.target

    @jax.jit
    def read(ids):
        changed = source, target._replace(inputs=ids)
        if side == "source":
            changed = source._replace(labels=ids), target
        return pair_features(model, type(paired)(*changed), None).features

    own = target.segments[:, :, None] == getattr(paired, side).segments[:, None, :]
    may_see = own if side == "source" else own & np.tri(9, dtype=bool)
    given = source.labels if side == "source" else target.inputs
    report = find_leaks(read, given, may_see, vocab_size=V)
    report.raise_if_failed()
    assert report.depends.sum() == may_see.sum()

"""Packed rows contain every token once, and each sequence is scored as if it were alone."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from attention.modules import EncoderDecoder, TransformerConfig
from experiments.data.packing import pack, pack_batch, pad_batch, row_lengths
from experiments.data.pipeline import PackedRows, ShuffledBatches
from experiments.data.tokenizers import BOS, EOS, PAD, EncodedPair
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
    batch = pack_batch([[3, 4, 5], [6], [7]], [2, 0, 1], 7)
    assert batch.inputs.tolist() == [[BOS, 3, 4, 5, BOS, 6, PAD], [PAD] * 7, [BOS, 7] + [PAD] * 5]
    assert batch.labels.tolist() == [[3, 4, 5, EOS, 6, EOS, PAD], [PAD] * 7, [7, EOS] + [PAD] * 5]
    assert batch.segments.tolist() == [[1, 1, 1, 1, 2, 2, 0], [0] * 7, [1, 1] + [0] * 5]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 0, 1, 0], [0] * 7, [0, 1] + [0] * 5]
    assert batch.counted.sum() == 3 + 1 + 1 + 3


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


def test_packed_pairs_are_read_as_each_alone():
    groups = [(PAIRS, np.array(row)) for row in ((0, 1, 4), (2, 3))]
    paired = PackedRows((9, 9), tokens=18).rows(groups).read(slice(0, 2))
    assert sorted(texts(paired.source)) == sorted(SEQUENCES)
    targets = {tuple(pair.source): pair.target for pair in PAIRS}
    assert texts(paired.target) == [targets[tuple(ids)] for ids in texts(paired.source)]
    model = translator("rotary")
    packed = jax.jit(lambda batch: pair_features(model, batch, None).features)(paired)
    batch = pad_batch(PAIRS, 5, 6)
    alone = jax.jit(lambda batch: pair_features(model, batch, None).features)(batch)
    alone = {tuple(pair.target): row for pair, row in zip(PAIRS, alone, strict=True)}
    for row, segment in np.argwhere(np.arange(1, 9) <= paired.target.segments.max(1)[:, None]):
        here = paired.target.segments[row] == segment + 1
        expected = alone.pop(tuple(paired.target.labels[row][here][:-1].tolist()))
        np.testing.assert_allclose(packed[row][here], expected[: here.sum()], rtol=1e-4, atol=1e-5)
    assert not alone


sizes = st.tuples(st.integers(1, 13), st.integers(1, 11))


@given(st.lists(sizes, min_size=1, max_size=60), st.integers(1, 60))
def test_no_row_is_too_full_and_an_example_is_left_only_if_it_fits_nowhere(lengths, most_rows):
    lengths = np.array(lengths)
    rows = pack(lengths, (13, 11), most_rows)
    assert set(rows[rows >= 0]) == {*range(rows.max() + 1)} and rows.max() < most_rows
    used = np.array([lengths[rows == row].sum(axis=0) for row in range(most_rows)])
    assert (used <= (13, 11)).all()
    for left in lengths[rows < 0]:
        assert not (used + left <= (13, 11)).all(axis=1).any()
    assert (pack(lengths, (13, 11)) >= 0).all()


def sentences(number, source, target, spread=0.15, longest=60):
    """Lengths of a corpus with these means, ends included."""
    random = np.random.default_rng(0)
    size = random.gamma(9, 1 / 9, number)
    ratio = np.exp(spread * random.standard_normal(number))
    lengths = np.stack([source * size, target * size * ratio], axis=1)
    return np.round(lengths).astype(int).clip(3, longest)


# Lengths, and the longest sequence of the model.
CORPORA = {
    "English to French": (sentences(3_000, 14.5, 17.5), 80),
    "a thousand pairs": (sentences(1_000, 10, 10.4), 64),
    "long sentences": (sentences(3_000, 28, 30, 0.2, longest=120), 256),
    "independent sides": (np.random.default_rng(0).integers(2, 30, (3_000, 2)), 128),
}


@pytest.mark.parametrize(("lengths", "most"), CORPORA.values(), ids=CORPORA)
def test_less_than_a_tenth_of_packed_batches_is_padding(lengths, most):
    rows = row_lengths(lengths, most)
    assert max(rows) <= most
    layout = PackedRows(rows, tokens=8 * max(rows))
    assert ShuffledBatches(SimpleNamespace(lengths=lengths), layout, seed=0).padding < 0.1

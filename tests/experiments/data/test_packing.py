"""Packed rows: complete, without attention between sequences, scored like single sequences."""

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from attention import masks
from attention.modules import EncoderDecoder, LanguageModel, TransformerConfig
from attention.testing import find_leaks
from experiments.data.batching import Buckets, EncodedPair, Epochs, evaluation_batches
from experiments.data.packing import PackedRows, PairedRows, first_fit
from experiments.data.vocabulary import BOS, EOS, PAD
from experiments.errors import UsageError
from experiments.training.features import packed_features, padded_features
from tests.attention.modules.inputs import filled

SEQUENCES = [[3, 4, 5], [6], [7, 8, 9, 10], [5, 3], [4]]
V = 11


def texts(batch):
    """Return the sequences of a batch, by their segments; the rest must be padding."""
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


def test_rows_by_hand():
    rows = PackedRows(SEQUENCES, length=7, tokens=21)
    assert rows.rows == [[0, 1], [2, 4], [3]]
    assert rows.padding == pytest.approx(5 / 21)
    ((_, batch),) = evaluation_batches(rows)
    assert batch.inputs[0].tolist() == [BOS, 3, 4, 5, BOS, 6, PAD]
    assert batch.labels[0].tolist() == [3, 4, 5, EOS, 6, EOS, PAD]
    assert batch.segments[0].tolist() == [1, 1, 1, 1, 2, 2, 0]
    assert batch.positions[0].tolist() == [0, 1, 2, 3, 0, 1, 0]
    assert batch.counted.sum() == sum(map(len, SEQUENCES)) + len(SEQUENCES)


sizes = st.tuples(st.integers(1, 13), st.integers(1, 13))


@given(st.lists(sizes, min_size=1, max_size=40), st.integers(1, 40))
def test_first_open_row_with_space_on_both_sides_is_used(needed, open_rows):
    rows = first_fit(needed, 13, open_rows)
    assert sorted(place for row in rows for place in row) == list(range(len(needed)))
    for number, row in enumerate(rows):
        assert all(sum(side) <= 13 for side in zip(*(needed[place] for place in row), strict=True))
        for place in row:
            begun = sum(other[0] < place for other in rows)
            for earlier in rows[max(0, begun - open_rows) : number]:
                there = [needed[other] for other in earlier if other < place]
                assert any(sum(side) > 13 for side in zip(*there, needed[place], strict=True))


def test_few_open_rows_are_almost_as_full():
    """Only the newest open rows are searched, which is fast enough for a million pairs."""
    assert first_fit([[3], [4], [2], [1], [3]], 5, open_rows=1) == [[0], [1], [2, 3], [4]]
    needed = np.random.default_rng(0).integers(5, 30, (1_500, 2)).tolist()
    assert len(first_fit(needed, 64)) <= 1.005 * len(first_fit(needed, 64, open_rows=1_500))


def test_epoch_contains_every_sequence_once_in_one_shape():
    random = np.random.default_rng(0)
    sequences = [random.integers(3, V, size=random.integers(1, 12)).tolist() for _ in range(97)]
    rows = PackedRows(sequences, length=17, tokens=71)
    epochs = Epochs(rows, num_batches=99, seed=1)
    first, second = (
        [epochs[epoch * epochs.epoch.steps + i] for i in range(epochs.epoch.steps)]
        for epoch in (0, 1)
    )
    for batches in (first, second, [batch for _, batch in evaluation_batches(rows)]):
        assert {array.shape for batch in batches for array in batch} == {(4, 17)}
        assert sorted(text for batch in batches for text in texts(batch)) == sorted(sequences)
        assert sum(batch.counted.sum() for batch in batches) == sum(map(len, sequences)) + 97
    assert any((a.inputs != b.inputs).any() for a, b in zip(first, second, strict=True))
    taken = sum(map(len, sequences)) + 97
    assert rows.padding == pytest.approx(1 - taken / (17 * len(rows.rows)))
    assert (
        rows.padding < (1 - taken / (17 * 97)) / 3
    )  # a third of the padding of one sequence per row


@pytest.mark.parametrize(
    "sequences, sizes, words",
    [
        ([], {"length": 7, "tokens": 7}, "there is no sequence to pack"),
        (
            [[3] * 7],
            {"length": 7, "tokens": 7},
            "needs 8 positions, and a packed row has 7: raise batch.row_length",
        ),
        (
            [[3]],
            {"length": 7, "tokens": 6},
            "a batch of 6 tokens has no room for a row of 7: raise batch",
        ),
    ],
)
def test_sequences_that_do_not_fit_raise(sequences, sizes, words):
    with pytest.raises(UsageError, match=words):
        PackedRows(sequences, **sizes)


def language_model(positions):
    config = TransformerConfig(
        width=10, num_heads=2, num_kv_heads=1, head_width=6, hidden=7, max_length=13,
        encoder_layers=0, decoder_layers=2, positions=positions,
    )  # fmt: skip
    make = LanguageModel.from_config
    model = filled(lambda: make(config, vocab_size=V, rngs=nnx.Rngs(0)))

    @jax.jit
    def score(batch):
        mask = masks.segments(batch.segments)
        return model(batch.inputs, mask=mask, positions=batch.positions).logits

    return score


@pytest.fixture(scope="module")
def packed():
    ((_, batch),) = evaluation_batches(PackedRows(SEQUENCES, length=9, tokens=18))
    assert len(texts(batch)) == len(SEQUENCES)
    return batch


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_packed_sequences_are_scored_like_single_ones(positions, packed):
    score = language_model(positions)
    alone = PackedRows(SEQUENCES, length=9, tokens=18)
    alone.rows = [[place] for place in range(len(SEQUENCES))]
    scores, compared = score(packed), 0
    for row, segment in np.argwhere(np.arange(1, 9) <= packed.segments.max(1)[:, None]):
        here = packed.segments[row] == segment + 1
        text = packed.labels[row][here][:-1].tolist()
        single = score(alone.batch(9, [SEQUENCES.index(text)]))[0, : len(text) + 1]
        np.testing.assert_allclose(scores[row][here], single, rtol=1e-4, atol=1e-5)
        compared += 1
    assert compared == len(SEQUENCES)


def test_no_sequence_depends_on_another_in_its_row(packed):
    score = language_model("learned")
    same = packed.segments[:, :, None] == packed.segments[:, None, :]
    report = find_leaks(
        lambda inputs: score(packed._replace(inputs=inputs)),
        packed.inputs,
        same & np.tri(9, dtype=bool),
        vocab_size=V,
    )
    report.raise_if_failed()
    # The check would detect a leak: every visible position has an effect.
    assert report.depends.sum() == (same & np.tri(9, dtype=bool)).sum()


PAIRS = [
    EncodedPair(source, target)
    for source, target in zip(SEQUENCES, [[8], [3, 9, 4], [5], [6, 10], [7, 3]], strict=True)
]


def test_both_sides_of_a_pair_are_in_the_same_row():
    rows = PairedRows(PAIRS, length=7, tokens=21)
    assert rows.rows == [[0, 1], [2, 4], [3]]
    assert rows.padding == pytest.approx(1 - (16 + 14) / 42)
    ((_, batch),) = evaluation_batches(rows)
    assert texts(batch.source) == [SEQUENCES[i] for i in (0, 1, 2, 4, 3)]
    assert texts(batch.target) == [PAIRS[i].target for i in (0, 1, 2, 4, 3)]
    assert batch.source.segments[0].tolist() == [1, 1, 1, 1, 2, 2, 0]
    assert batch.target.segments[0].tolist() == [1, 1, 2, 2, 2, 2, 0]


def test_pair_longer_than_a_row_raises():
    with pytest.raises(UsageError, match=r"packed row has 4: raise batch\.row_length"):
        PairedRows(PAIRS, length=4, tokens=8)
    with pytest.raises(UsageError, match="there is no pair"):
        PairedRows([], length=4, tokens=8)


def translator(positions):
    config = TransformerConfig(
        width=10, num_heads=2, head_width=4, hidden=7, max_length=13,
        encoder_layers=2, decoder_layers=2, positions=positions,
    )  # fmt: skip
    make, sizes = EncoderDecoder.from_config, {"source_vocab_size": V, "target_vocab_size": V}
    return filled(lambda: make(config, **sizes, rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def paired():
    ((_, batch),) = evaluation_batches(PairedRows(PAIRS, length=9, tokens=18))
    assert batch.source.segments.max(1).tolist() == [3, 2]
    return batch


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "relative"])
def test_packed_pairs_are_scored_like_single_ones(positions, paired):
    model = translator(positions)
    packed = jax.jit(lambda batch: packed_features(model, batch, None).features)(paired)
    ((places, batch),) = evaluation_batches(Buckets(PAIRS, [6], 30))
    alone = jax.jit(lambda batch: padded_features(model, batch, None).features)(batch)
    alone = {tuple(PAIRS[place].target): row for place, row in zip(places, alone, strict=True)}
    for row, segment in np.argwhere(np.arange(1, 9) <= paired.target.segments.max(1)[:, None]):
        here = paired.target.segments[row] == segment + 1
        expected = alone.pop(tuple(paired.target.labels[row][here][:-1].tolist()))
        np.testing.assert_allclose(packed[row][here], expected[: here.sum()], rtol=1e-4, atol=1e-5)
    assert not alone


@pytest.mark.parametrize("side", ["source", "target"])
def test_no_pair_depends_on_another_in_its_row(side, paired):
    model, source, target = translator("sinusoidal"), paired.source, paired.target

    @jax.jit
    def read(ids):
        changed = source, target._replace(inputs=ids)
        if side == "source":
            changed = source._replace(labels=ids), target
        return packed_features(model, type(paired)(*changed), None).features

    own = target.segments[:, :, None] == getattr(paired, side).segments[:, None, :]
    may_see = own if side == "source" else own & np.tri(9, dtype=bool)
    given = source.labels if side == "source" else target.inputs
    report = find_leaks(read, given, may_see, vocab_size=V)
    report.raise_if_failed()
    assert report.depends.sum() == may_see.sum()

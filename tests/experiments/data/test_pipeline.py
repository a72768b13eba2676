"""Each example once an epoch, in rows with little padding, as a function of (seed, step)."""

import functools
import math
from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from attention.modules import EncoderDecoder, TransformerConfig
from experiments.data.masking import MaskedBatches, make_gaps
from experiments.data.packing import pack, pack_batch, pad_batch, row_lengths
from experiments.data.pipeline import Buckets, PackedRows, ShuffledBatches, SortedBatches, Windows
from experiments.data.skip_grams import SkipGramBatches
from experiments.data.tokenizers import BOS, EOS, PAD, EncodedExamples, EncodedPair
from experiments.errors import UsageError
from experiments.tasks.translation import pair_features
from tests.attention.modules.inputs import filled

BUCKETS, PACKED = Buckets((5, 11, 18), 36), PackedRows((23, 19), 92)
LAYOUTS = {"buckets": BUCKETS, "one bucket": Buckets((18,), 36), "packed": PACKED}
over_layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
IDS = np.arange(101, 101 + 53, dtype=np.int32)


class Pairs(EncodedExamples):
    """Pair i consists of token 100 + i on both sides; `numbers` are those that were read."""

    def __init__(self):
        lengths = [1 + 7 * i % 17 for i in range(53)]
        super().__init__(
            EncodedPair([100 + i] * n, [100 + i] * (1 + n // 2)) for i, n in enumerate(lengths)
        )
        self.numbers = []

    def __getitem__(self, number):
        self.numbers.append(number)
        return super().__getitem__(number)


def members(batch):
    """Numbers of the pairs of a padded or packed batch."""
    if hasattr(batch, "source_lengths"):
        return [row[0] - 100 for row in batch.source if row[0] not in (PAD, EOS)]
    return (batch.source.inputs[batch.source.positions == 1] - 100).tolist()


@over_layouts
@pytest.mark.parametrize("block", [99, 20])
def test_epoch_contains_every_pair_once(layout, block):
    batches = ShuffledBatches(Pairs(), layout, seed=3, block=block)
    steps = int(batches.epoch.steps * layout.per_batch)  # of `per_batch` epochs
    numbers = [i for step in range(steps) for i in members(batches[step])]
    assert sorted(numbers) == sorted([*range(53)] * layout.per_batch)


@over_layouts
@pytest.mark.parametrize("block", [99, 20])
def test_batch_depends_on_seed_and_step_alone(layout, block):
    def order(seed, steps):
        batches = ShuffledBatches(Pairs(), layout, seed=seed, block=block)
        return {step: members(batches[step]) for step in steps}

    steps = math.ceil(ShuffledBatches(Pairs(), layout, seed=0, block=block).epoch.steps)
    straight, resumed = order(0, range(2 * steps)), order(0, reversed(range(9, 2 * steps)))
    assert {step: straight[step] for step in resumed} == resumed
    assert straight != order(1, range(2 * steps))
    assert [straight[i] for i in range(steps)] != [straight[steps + i] for i in range(steps)]


def test_sorted_batches_contain_every_pair_once_with_its_number():
    for layout in LAYOUTS.values():
        batches = SortedBatches(Pairs(), layout)
        for number, batch in enumerate(batches):
            assert sorted(members(batch)) == sorted(batches.members(number).tolist())
        order = [i for number in range(len(batches)) for i in batches.members(number).tolist()]
        assert sorted(order) == [*range(53)]
        if isinstance(layout, Buckets):  # sentences of a batch end at about the same step
            needed = Pairs().lengths.max(axis=1)[order].tolist()
            assert needed == sorted(needed)


def test_example_that_is_longer_than_a_row_raises():
    with pytest.raises(UsageError, match=r"18 positions, and a row has 8: raise batch\.row_le"):
        ShuffledBatches(Pairs(), PackedRows((20, 8), 40), seed=0)


def skip_grams(_):
    options = {"vocab_size": 230, "window": 3, "threshold": 1.0, "size": 8, "negatives": 2}
    return SkipGramBatches(
        np.arange(7, 211, dtype=np.int32), np.array([97, 204]), seed=3, **options
    )


def redrawn(pairs):
    def redraw(numbers, _):
        return EncodedExamples(pairs[number] for number in numbers.tolist())

    return ShuffledBatches(pairs, PACKED, seed=3, block=20, redraw=redraw)


KINDS = {
    "padded": functools.partial(ShuffledBatches, layout=BUCKETS, seed=3),
    "packed": functools.partial(ShuffledBatches, layout=PACKED, seed=3, block=20),
    "redrawn": redrawn,
    "fixed order": functools.partial(SortedBatches, layout=PACKED),
    "masked": lambda pairs: MaskedBatches(ShuffledBatches(pairs, BUCKETS, seed=3), 200, 3),
    "fixed masks": lambda pairs: MaskedBatches(SortedBatches(pairs, BUCKETS), 200),
    "text": lambda _: Windows(IDS, context=7, size=6, seed=3),
    "fixed text": lambda _: Windows(IDS, context=7, size=4),
    "skip-grams": skip_grams,
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_whole_batch(kind):
    pairs = Pairs()
    batches = KINDS[kind](pairs)
    for step in (0, 1, len(batches) - 1 if "fixed" in kind else 9):
        whole, rows = batches[step], batches.rows(step)
        assert {len(array) for array in jax.tree.leaves(whole)} == {rows.number}
        read = []
        half = rows.number // 2
        for part in (slice(half), slice(half, rows.number)):
            pairs.numbers.clear()
            expected = jax.tree.map(lambda array, part=part: array[part], whole)
            chex.assert_trees_all_equal(rows.read(part), expected, strict=True)
            read.append({*pairs.numbers})
        assert read[0].isdisjoint(read[1])  # only the examples of the rows are read


def test_windows_begin_anywhere_and_labels_are_the_next_ids():
    batches = Windows(IDS, context=7, size=5, seed=3)
    for batch in (batches[step] for step in range(200)):
        assert batch.inputs.shape == batch.labels.shape == batch.counted.shape == (5, 7)
        np.testing.assert_array_equal(batch.labels, batch.inputs + 1)
        np.testing.assert_array_equal(batch.inputs, batch.inputs[:, :1] + np.arange(7))
        assert batch.counted.all()
    starts = {int(start) for step in range(200) for start in batches[step].inputs[:, 0]}
    assert starts == {*range(101, 101 + 53 - 7)}
    assert (batches[4].inputs != batches[5].inputs).any()


@pytest.mark.parametrize("length", [8, 9, 14, 15, 29, 36, 53])
def test_fixed_windows_count_every_label_once(length):
    batches = [*Windows(IDS[:length], context=7, size=3)]
    assert {batch.inputs.shape for batch in batches} == {(3, 7)}
    counted = [label for batch in batches for label in batch.labels[batch.counted].tolist()]
    assert counted == IDS[1:length].tolist()


def test_shares_of_masked_random_and_kept_words():
    """Of 15 % of the words, 80 % are gaps and 10 % random; no other token is predicted."""
    tokens = np.random.default_rng(7).integers(3, 503, (500, 200), dtype=np.int32)
    tokens[:, [0, 4, 8, 9]] = 1, 503, 2, 0
    inputs, chosen = make_gaps(tokens, 503, (0, 0), 500)
    assert inputs.dtype == tokens.dtype and not chosen[:, [0, 4, 8, 9]].any()
    np.testing.assert_array_equal(inputs[~chosen], tokens[~chosen])
    inputs, chosen, tokens = inputs[:, 10:], chosen[:, 10:], tokens[:, 10:]
    assert chosen.mean() == pytest.approx(0.15, abs=0.005)
    both = (chosen[:, :-1] & chosen[:, 1:]).mean()  # each position by itself
    assert both == pytest.approx(0.15**2, abs=0.005)
    gap, same = inputs[chosen] == 503, inputs[chosen] == tokens[chosen]
    assert gap.mean() == pytest.approx(0.8, abs=0.01)
    assert same.mean() == pytest.approx(0.1 + 0.1 / 500, abs=0.01)
    others = {*inputs[chosen][~gap & ~same].tolist()}
    assert others <= {*range(3, 503)} and len(others) > 0.9 * 500
    for seed in ((0, 1), (1, 0)):
        assert (make_gaps(tokens, 503, seed, 500)[1] != chosen).any()


SEQUENCES = [[3, 4, 5], [6], [7, 8, 9, 10], [5, 3], [4]]


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


def test_packed_pairs_are_read_as_each_alone():
    config = TransformerConfig(
        width=10, num_heads=2, head_width=4, hidden=7, max_length=13,
        encoder_layers=1, decoder_layers=1, positions="rotary",
    )  # fmt: skip
    make, sizes = EncoderDecoder.from_config, {"source_vocab_size": 11, "target_vocab_size": 11}
    model = filled(lambda: make(config, **sizes, rngs=nnx.Rngs(0)))
    features = jax.jit(lambda batch: pair_features(model, batch, None).features)
    groups = [(PAIRS, np.array(row)) for row in ((0, 1, 4), (2, 3))]
    paired = PackedRows((9, 9), tokens=18).rows(groups).read(slice(0, 2))
    assert sorted(texts(paired.source)) == sorted(SEQUENCES)
    targets = {tuple(pair.source): pair.target for pair in PAIRS}
    assert texts(paired.target) == [targets[tuple(ids)] for ids in texts(paired.source)]
    packed, alone = features(paired), features(pad_batch(PAIRS, 5, 6))
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

"""Each example once an epoch, little padding, and each batch a function of (seed, step)."""

import functools
import math

import chex
import jax
import numpy as np
import pytest

from experiments.data.masking import MaskedBatches, make_gaps
from experiments.data.pipeline import (
    Buckets,
    PackedRows,
    ShuffledBatches,
    SortedBatches,
    Windows,
)
from experiments.data.skip_grams import SkipGramBatches
from experiments.data.tokenizers import EOS, PAD, EncodedExamples, EncodedPair
from experiments.errors import UsageError

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
    num_groups = batches.epoch.steps * layout.per_batch
    steps = math.lcm(int(num_groups), layout.per_batch) // layout.per_batch  # of whole epochs
    epochs = steps // batches.epoch.steps
    numbers = [i for step in range(steps) for i in members(batches[step])]
    assert sorted(numbers) == sorted([*range(53)] * int(epochs))


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


def halves(number):
    return slice(0, number // 2), slice(number // 2, number)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_whole_batch(kind):
    pairs = Pairs()
    batches = KINDS[kind](pairs)
    for step in (0, 1, len(batches) - 1 if "fixed" in kind else 9):
        whole, rows = batches[step], batches.rows(step)
        assert {len(array) for array in jax.tree.leaves(whole)} == {rows.number}
        read = []
        for part in halves(rows.number):
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

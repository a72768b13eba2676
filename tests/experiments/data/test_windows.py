"""Each example once an epoch, little padding, and each batch a function of (seed, step)."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.data.examples import EncodedExamples, EncodedPair
from experiments.data.packing import pack, row_lengths
from experiments.data.pipeline import Buckets, PackedRows, Rows, ShuffledBatches, SortedBatches
from experiments.data.tokenizers import EOS, PAD
from experiments.errors import UsageError


def pairs(number=53, longest=17):
    """Pair i consists of token 100 + i on both sides."""
    lengths = [1 + 7 * i % longest for i in range(number)]
    return EncodedExamples(
        EncodedPair([100 + i] * n, [100 + i] * (1 + n // 2)) for i, n in enumerate(lengths)
    )


def members(batch):
    """Numbers of the pairs of a padded or packed batch."""
    if hasattr(batch, "source_lengths"):
        return [row[0] - 100 for row in batch.source if row[0] not in (PAD, EOS)]
    return (batch.source.inputs[batch.source.positions == 1] - 100).tolist()


LAYOUTS = {
    "buckets": Buckets((5, 11, 18), 36),
    "one bucket": Buckets((18,), 36),
    "packed": PackedRows((23, 19), 92),
}


@pytest.mark.parametrize("size", [99, 20])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_an_epoch_contains_every_pair_once(layout, size):
    windows = ShuffledBatches(pairs(), layout, seed=3, size=size)
    num_units = windows.epoch.steps * layout.per_batch
    steps = math.lcm(int(num_units), layout.per_batch) // layout.per_batch  # of whole epochs
    epochs = steps // windows.epoch.steps
    found = [i for step in range(steps) for i in members(windows[step])]
    assert sorted(found) == sorted([*range(53)] * int(epochs))


@pytest.mark.parametrize("size", [99, 20])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_numbers_of_the_examples_of_a_batch(layout, size):
    windows = ShuffledBatches(pairs(), layout, seed=3, size=size)
    for step in (0, 5):
        assert sorted(windows.members(step).tolist()) == sorted(members(windows[step]))


def test_batches_have_only_the_shapes_of_the_layout():
    windows = ShuffledBatches(pairs(), LAYOUTS["buckets"], seed=3)
    batches = [windows[step] for step in range(int(windows.epoch.steps))]
    assert {batch.source.shape for batch in batches} == {(7, 5), (3, 11), (2, 18)}
    windows = ShuffledBatches(pairs(), LAYOUTS["packed"], seed=3)
    batches = [windows[step] for step in range(50)]
    assert {(b.source.inputs.shape, b.target.inputs.shape) for b in batches} == {((4, 23), (4, 19))}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_batch_depends_on_seed_and_step_alone(layout):
    def order(seed, steps, size=99):
        windows = ShuffledBatches(pairs(), layout, seed=seed, size=size)
        return {step: members(windows[step]) for step in steps}

    for size in (99, 20):
        straight = order(0, range(60), size)
        resumed = order(0, reversed(range(31, 60)), size)
        assert {step: straight[step] for step in resumed} == resumed
    assert straight != order(1, range(60), 20)
    steps = math.ceil(ShuffledBatches(pairs(), layout, seed=0).epoch.steps)
    straight = order(0, range(2 * steps))
    assert [straight[i] for i in range(steps)] != [straight[steps + i] for i in range(steps)]


def test_a_window_takes_bounded_memory():
    """Of a million examples, in a memory map, some megabytes are in memory."""

    class Many:
        lengths = np.random.default_rng(0).integers(3, 40, (1_000_000, 2), np.int32)

        def __getitem__(self, number):
            return EncodedPair([number] * (self.lengths[number, 0] - 1), [7])

    layout = PackedRows((64, 64), 64 * 16)
    windows = ShuffledBatches(Many(), layout, seed=0, size=8_192)
    tracemalloc.start()
    for step in (0, 12_345, 50_000_000):
        windows[step]
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


def test_once_meets_every_pair_once_and_returns_its_number():
    for layout in LAYOUTS.values():
        batches, seen = SortedBatches(pairs(), layout), []
        for number, batch in enumerate(batches):
            assert sorted(members(batch)) == sorted(batches.members(number).tolist())
            seen += batches.members(number).tolist()
        assert sorted(seen) == list(range(53))
    batches = SortedBatches(pairs(), Buckets((5, 18), 36))
    seen = [i for number in range(len(batches)) for i in batches.members(number)]
    needed = [pairs()[i].length for i in seen]
    assert needed == sorted(needed)  # sentences of a batch end at about the same step


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_padding_is_that_of_the_batches(layout):
    windows = ShuffledBatches(pairs(), layout, seed=0)
    steps = int(windows.epoch.steps * layout.per_batch)  # as many epochs as rows of a batch
    batches = [windows[step] for step in range(steps)]
    if isinstance(layout, PackedRows):
        sides = [side.labels for batch in batches for side in batch]
    else:
        sides = [side for batch in batches for side in (batch.source, batch.target_labels)]
    padding = sum((side == PAD).sum() for side in sides) / sum(side.size for side in sides)
    assert windows.padding == pytest.approx(padding)


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (Buckets((5, 17), 36), "an example needs 18 positions, and the longest bucket has 17"),
        (Buckets((5, 18), 17), "a batch of 17 tokens has no room for a row of 18: raise batch"),
        (
            PackedRows((20, 8), 40),
            "needs 10 positions, and a packed row has 8: raise batch",
        ),
        (PackedRows((20, 20), 19), "a batch of 19 tokens has no room for a row of 20"),
    ],
)
def test_a_layout_without_room_is_refused(layout, sentence):
    for arrange in (
        lambda: ShuffledBatches(pairs(), layout, seed=0),
        lambda: SortedBatches(pairs(), layout),
    ):
        with pytest.raises(UsageError, match=sentence):
            arrange()


def test_no_example_is_refused():
    with pytest.raises(UsageError, match="there is no example to train on"):
        ShuffledBatches(EncodedExamples(), LAYOUTS["packed"], seed=0)
    with pytest.raises(UsageError, match="there is no example to measure"):
        SortedBatches(EncodedExamples(), LAYOUTS["packed"])
    with pytest.raises(UsageError, match=r"packed row has 3: raise batch\.row_length"):
        ShuffledBatches(EncodedExamples([([1, 2, 3],)]), PackedRows([3], 9), seed=0)


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


def test_the_number_of_rows_does_not_depend_on_the_order():
    lengths = np.random.default_rng(0).integers(1, 30, (400, 2))
    rows = {pack(np.random.default_rng(i).permutation(lengths), (40, 40)).max() for i in range(9)}
    assert len(rows) == 1


def sentences(number, source, target, spread=0.15, longest=60):
    """Lengths of a corpus with these means, ends included."""
    random = np.random.default_rng(0)
    size = random.gamma(9, 1 / 9, number)
    ratio = np.exp(spread * random.standard_normal(number))
    lengths = np.stack([source * size, target * size * ratio], axis=1)
    return np.round(lengths).astype(int).clip(3, longest)


def drawn(low, high, sides=1):
    return np.random.default_rng(0).integers(low, high, (3_000, sides))


# Lengths, and the longest sequence of the model.
CORPORA = {
    "English to German": (sentences(3_000, 14.5, 15.0), 80),
    "English to French": (sentences(3_000, 14.5, 17.5), 80),
    "sides of ratio 15:9": (sentences(3_000, 15.0, 9.0), 80),
    "toy language": (sentences(3_000, 10, 10.4, 0.05, longest=22), 48),
    "a thousand pairs": (sentences(1_000, 10, 10.4), 64),
    "long sentences": (sentences(3_000, 28, 30, 0.2, longest=120), 256),
    "all of one length": (np.full((3_000, 2), 7), 48),
    "uniform": (drawn(2, 40), 64),
    "independent sides": (drawn(2, 30, sides=2), 128),
    "long and short": (np.stack([drawn(30, 49)[:, 0], drawn(5, 14)[:, 0]], axis=1), 128),
    "heavy tail": (np.exp(drawn(110, 550) / 100).astype(int), 256),
}  # fmt: skip


class Lengths:
    """Examples that have only lengths."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __getitem__(self, number):
        return number


@pytest.mark.parametrize(("lengths", "most"), CORPORA.values(), ids=CORPORA)
def test_less_than_a_tenth_of_packed_batches_is_padding(lengths, most):
    rows = row_lengths(lengths, most)
    assert max(rows) <= most
    layout = PackedRows(rows, tokens=8 * max(rows))
    assert ShuffledBatches(Lengths(lengths), layout, seed=0).padding < 0.1


@pytest.mark.parametrize("name", ["a thousand pairs", "independent sides", "heavy tail"])
def test_packed_batches_of_small_windows_leave_nothing_out(name):
    """Small windows cost some spare room."""
    lengths, most = CORPORA[name]
    rows = row_lengths(lengths, most)
    layout = PackedRows(rows, tokens=8 * max(rows))
    windows = ShuffledBatches(Lengths(lengths), layout, seed=0, size=-(-len(lengths) // 2))
    layout.rows = lambda units: Rows(len(units), units.__getitem__)
    steps = int(windows.epoch.steps * layout.per_batch)
    units = itertools.chain(*(windows[step] for step in range(steps)))
    found = [examples[number] for examples, members in units for number in members]
    assert (np.bincount(found) == layout.per_batch).all()

"""Each process reads the rows of its devices, which are those of the whole batch."""

import functools

import chex
import jax
import numpy as np
import pytest

from experiments.data.examples import EncodedExamples, EncodedPair
from experiments.data.masking import FixedMasks, MaskedBatches, Masking
from experiments.data.pipeline import (
    Batches,
    Buckets,
    CachedBatches,
    FiniteBatches,
    PackedRows,
    ShuffledBatches,
    SortedBatches,
    reads_rows,
)
from experiments.data.skip_grams import SkipGramBatches
from experiments.data.text_windows import FixedWindows, RandomWindows

TEXT = np.arange(7, 211, dtype=np.int32)


class Read(EncodedExamples):
    """Examples that record the numbers of those that were read."""

    numbers: list[int]

    def __getitem__(self, number):
        self.numbers.append(number)
        return super().__getitem__(number)


def examples():
    """Example i consists of token 100 + i on both sides."""
    lengths = [1 + 7 * i % 17 for i in range(53)]
    found = Read(
        EncodedPair([100 + i] * n, [100 + i] * (1 + n // 2)) for i, n in enumerate(lengths)
    )
    found.numbers = []
    return found


def skip_grams(_):
    options = {"vocab_size": 230, "window": 3, "threshold": 1.0, "size": 8, "negatives": 2}
    return SkipGramBatches(TEXT, np.array([97, 204]), seed=3, **options)


def packed(found):
    return ShuffledBatches(
        EncodedExamples((each.source,) for each in found), PackedRows([23], 92), seed=3
    )


def redrawn(found):
    def redraw(numbers, _):
        return EncodedExamples(found[number] for number in numbers.tolist())

    return ShuffledBatches(found, PACKED, seed=3, size=20, redraw=redraw)


PACKED, BUCKETS = PackedRows((23, 19), 92), Buckets((5, 18), 72)
SOURCES = {
    "padded": functools.partial(ShuffledBatches, layout=BUCKETS, seed=3),
    "packed pairs": functools.partial(ShuffledBatches, layout=PACKED, seed=3, size=20),
    "packed": packed,
    "redrawn": redrawn,
    "padded once": functools.partial(SortedBatches, layout=BUCKETS),
    "packed once": functools.partial(SortedBatches, layout=PACKED),
    "masked": lambda found: MaskedBatches(found, BUCKETS, Masking(200, 5), seed=3),
    "masked once": lambda found: FixedMasks(found, BUCKETS, Masking(200, 5)),
    "text": lambda _: RandomWindows(TEXT, context=7, size=6, seed=3),
    "text once": lambda _: FixedWindows(TEXT, context=7, size=4),
    "skip-grams": skip_grams,
}


def halves(number):
    return slice(0, number // 2), slice(number // 2, number)


@pytest.mark.parametrize("name", SOURCES)
def test_parts_are_the_rows_of_the_whole_batch(name):
    batches = DATASETS[name].source(examples())
    assert isinstance(batches, Batches) and reads_rows(batches)
    last = len(batches) - 1 if isinstance(batches, FiniteBatches) else 9
    for step in (0, 1, last):
        whole, rows = batches[step], batches.rows(step)
        assert {len(array) for array in jax.tree.leaves(whole)} == {rows.number}
        for part in (*halves(rows.number), slice(rows.number - 1, rows.number)):
            expected = jax.tree.map(lambda array, part=part: array[part], whole)
            chex.assert_trees_all_equal(rows.read(part), expected, strict=True)


@pytest.mark.parametrize("name", ["padded", "packed pairs", "padded once", "packed once", "masked"])
def test_only_the_examples_of_the_rows_are_read(name):
    found = examples()
    rows = DATASETS[name].source(found).rows(1)
    assert found.numbers == []
    seen = []
    for part in halves(rows.number):
        rows.read(part)
        seen.append([*found.numbers])
        found.numbers.clear()
    assert all(seen) and not {*seen[0]} & {*seen[1]}
    rows.read(slice(0, rows.number))
    assert sorted(found.numbers) == sorted([*seen[0], *seen[1]])


def test_cached_rows_are_read_once():
    found = examples()
    cached = CachedBatches(DATASETS["padded once"].source(found))
    for number in range(len(cached)):
        rows, whole = cached.rows(number), DATASETS["padded once"].source(examples())[number]
        for part in (*halves(rows.number), slice(0, rows.number)):
            expected = jax.tree.map(lambda array, part=part: array[part], whole)
            chex.assert_trees_all_equal(rows.read(part), expected)
    assert len(found.numbers) == 2 * 53  # in halves, and whole
    chex.assert_trees_all_equal(next(iter(cached)), DATASETS["padded once"].source(examples())[0])
    assert len(found.numbers) == 2 * 53

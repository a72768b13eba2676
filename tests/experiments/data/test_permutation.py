"""A random order that is computed place by place."""

import numpy as np
import pytest

from experiments.data.pipeline import permuted

SEED = np.random.SeedSequence((3, 1))


@pytest.mark.parametrize("number", [1, 2, 3, 5, 16, 17, 1_000])
def test_each_number_occurs_once(number):
    assert sorted(permuted(np.arange(number), number, SEED)) == [*range(number)]


def test_a_part_of_an_order_is_that_of_the_whole():
    whole = permuted(np.arange(1_000), 1_000, SEED)
    np.testing.assert_array_equal(permuted(np.arange(400, 500), 1_000, SEED), whole[400:500])


def test_orders_of_other_seeds_and_neighbours_are_independent():
    number = 100_000
    first = permuted(np.arange(number), number, SEED)
    other = permuted(np.arange(number), number, np.random.SeedSequence((3, 2)))
    pairs = [(first, np.arange(number)), (first, other), (first[1:], first[:-1])]
    deviation = number**-0.5  # of the correlation of independent orders
    assert all(abs(np.corrcoef(*pair)[0, 1]) < 4 * deviation for pair in pairs)

"""A pseudorandom permutation, evaluated at any positions in O(1) memory."""

import numpy as np

ROUNDS = 8  # of a Feistel network; four give a pseudorandom permutation (Luby and Rackoff 1988)
MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of SplitMix64 (Steele et al. 2014)


def permuted(places: np.ndarray, number: int, seed: np.random.SeedSequence) -> np.ndarray:
    """Return the numbers at some places of a random order of 0, …, number - 1.

    The order is a Feistel network over the smallest even number of bits that can represent
    number - 1; a result that is too large is permuted again (cycle walking, Black and Rogaway
    2002).

    Args:
        places: integers in [0, number), of any shape.
        number: of the examples.
        seed: of the order.

    >>> permuted(np.arange(5), 5, np.random.SeedSequence(0)).tolist()
    [4, 2, 1, 3, 0]
    """
    half = np.uint64(max(1, -(-(number - 1).bit_length() // 2)))  # bits
    keys = seed.generate_state(ROUNDS, np.uint64)
    found = np.array(places, np.uint64)
    is_outside = np.ones_like(found, bool)
    while is_outside.any():
        found[is_outside] = _feistel(found[is_outside], half, keys)
        is_outside = found >= number
    return found.astype(np.int64)


def _feistel(numbers: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    """Permute the numbers below 2^(2 half)."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (_hash(right ^ key) & mask)
    return (left << half) | right


def _hash(numbers: np.ndarray) -> np.ndarray:
    """Mix the bits of integers; products are modulo 2^64."""
    for shift, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(multiplier)
    return numbers ^ (numbers >> np.uint64(31))

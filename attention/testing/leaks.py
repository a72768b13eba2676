"""Find outputs of a model that depend on inputs that they must not depend on.

Two independent tests. A nonzero derivative proves a dependence; the linearised model propagates
zeros exactly, so without a dependence the derivative is exactly zero. And a replaced input either
changes the bits of an output or does not; this needs no derivative, so it works for integer tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike

# A number, or (row, position) in a batch.
Position = int | tuple[int, ...]
MaySee = ArrayLike | Callable[[Position, Position], bool]


@dataclass(frozen=True)
class Leak:
    """An output position that depends on an input position, although it must not."""

    output: Position
    input: Position
    evidence: str  # the size of the derivative or of the change

    def __str__(self) -> str:
        return f"output {self.output} must not depend on input {self.input}: {self.evidence}"


@dataclass(frozen=True)
class LeakReport:
    """The result of `find_leaks`.

    Attributes:
        leaks: sorted by output, then by input.
        blind_spots: pairs of an output and an input position that it may depend on, but does not:
            no error, but a hint that a mask may hide too much.
        depends: bool `[*output positions, *input positions]`, all dependences that were found.
    """

    leaks: tuple[Leak, ...]
    blind_spots: tuple[tuple[Position, Position], ...]
    depends: np.ndarray

    def __str__(self) -> str:
        summary = f"{len(self.leaks)} leaks, {len(self.blind_spots)} blind spots"
        unused = (f"output {t} may depend on input {s}, but does not" for t, s in self.blind_spots)
        return "\n".join([summary, *map(str, self.leaks), *unused])

    def raise_if_failed(self) -> None:
        """Raise an AssertionError that lists the leaks, if there are any."""
        if self.leaks:
            raise AssertionError("\n".join(map(str, self.leaks)))


def find_leaks(
    model: Callable[[Array], Array],
    inputs: ArrayLike,
    may_see: MaySee,
    *,
    vocab_size: int | None = None,
    trials: int = 2,
    nonfinite: bool = False,
) -> LeakReport:
    """Find every output position that depends on an input position that it must not depend on.

    Args:
        model: maps inputs to outputs `[..., T, any width]`; can be traced by jax.
        inputs: floats `[..., S, D]`, or integer tokens `[..., S]`. The last axis of floats is not
            split: a position is the vector of its features.
        may_see: the allowed dependences. A function of (output position, input position), which
            are numbers, or pairs (row, position) in a batch; or a bool array, either
            `[*output positions, *input positions]`, or `[T, S]` or `[..., T, S]`, one for each row:
            then rows must not depend on each other.
        vocab_size: replacement tokens are below it; the largest token plus one by default.
        trials: number of random directions, and number of replacements, for each position.
        nonfinite: also set float positions to NaN, one at a time. A model that multiplies masked
            inputs by zero fails this test.

    Raises:
        ValueError: an array `may_see` of another shape.

    >>> import jax.numpy as jnp
    >>> report = find_leaks(lambda x: x + x[::-1], jnp.ones((2, 3)), jnp.eye(2))
    >>> [(leak.output, leak.input) for leak in report.leaks]
    [(0, 1), (1, 0)]
    """
    inputs = np.asarray(inputs)
    tokens = np.issubdtype(inputs.dtype, np.integer)
    input_shape = inputs.shape if tokens else inputs.shape[:-1]
    run, tangent = jax.jit(model), jax.jit(lambda *given: jax.jvp(model, given[:1], given[1:])[1])
    before = np.asarray(run(inputs), np.float64)
    output_shape = before.shape[:-1]

    def change(inputs: np.ndarray) -> np.ndarray:
        after = np.asarray(run(inputs), np.float64)
        same = (after == before) | (np.isnan(after) & np.isnan(before))
        return np.where(same, 0, np.nan_to_num(np.abs(after - before), nan=np.inf))

    def derivative(tangents: np.ndarray) -> np.ndarray:
        found = np.asarray(tangent(inputs, tangents), np.float64)
        return np.nan_to_num(np.abs(found), nan=np.inf)

    def largest(
        effect: Callable[[np.ndarray], np.ndarray], given: np.ndarray, others: np.ndarray
    ) -> np.ndarray:
        """Replace one position at a time; return effects `[*output, *input positions]`."""
        found = np.zeros((*output_shape, *input_shape))
        for position in np.ndindex(*input_shape):
            for other in others:
                new = given.copy()
                new[position] = other[position]
                at = (..., *position)
                found[at] = np.maximum(found[at], effect(new).max(axis=-1))
        return found

    effects, others = {}, _others(inputs, vocab_size, trials)
    if not tokens:
        drawn = np.random.default_rng(0).standard_normal(others.shape).astype(inputs.dtype)
        effects["derivative"] = largest(derivative, np.zeros_like(inputs), drawn)
    effects["change by another input"] = largest(change, inputs, others)
    if nonfinite and not tokens:
        effects["change by NaN"] = largest(change, inputs, np.full_like(inputs, np.nan)[None])
    depends = np.any([found > 0 for found in effects.values()], axis=0)
    leaks, blind_spots = [], []
    for index in np.argwhere(depends != _allowed(may_see, output_shape, input_shape)).tolist():
        output = _position(index[: len(output_shape)])
        given = _position(index[len(output_shape) :])
        sizes = {name: found[tuple(index)] for name, found in effects.items()}
        evidence = ", ".join(f"{name} {size:.3g}" for name, size in sizes.items() if size > 0)
        if evidence:
            leaks.append(Leak(output, given, evidence))
        else:
            blind_spots.append((output, given))
    return LeakReport(tuple(leaks), tuple(blind_spots), depends)


def _others(inputs: np.ndarray, vocab_size: int | None, trials: int) -> np.ndarray:
    """Return arrays `[trials, *inputs.shape]` that differ from the inputs in every position."""
    random, shape = np.random.default_rng(1), (trials, *inputs.shape)
    if np.issubdtype(inputs.dtype, np.integer):
        size = max(2, int(inputs.max()) + 1) if vocab_size is None else vocab_size
        return ((inputs + random.integers(1, size, shape)) % size).astype(inputs.dtype)
    others = 3 * random.standard_normal(shape).astype(inputs.dtype)
    others[0] = np.where(inputs == 0, 1, -inputs)  # for models that depend on signs only
    return others


def _allowed(
    may_see: MaySee, output_shape: tuple[int, ...], input_shape: tuple[int, ...]
) -> np.ndarray:
    """Return the allowed dependences, bool `[*output positions, *input positions]`."""
    shape = *output_shape, *input_shape
    if callable(may_see):
        pairs = product(*(map(_position, np.ndindex(*s)) for s in (output_shape, input_shape)))
        return np.array([may_see(*pair) for pair in pairs], bool).reshape(shape)
    given = np.asarray(may_see, bool)
    if given.shape == shape:
        return given
    rows, sizes = output_shape[:-1], (output_shape[-1], input_shape[-1])
    fits = given.shape[-2:] == sizes and given.ndim <= len(output_shape) + 1
    if rows != input_shape[:-1] or not fits:
        raise ValueError(f"may_see has shape {given.shape}, needs {shape}, or {sizes} for each row")
    allowed = np.zeros(shape, bool)
    for row in np.ndindex(*rows):
        allowed[(*row, slice(None), *row)] = np.broadcast_to(given, (*rows, *sizes))[row]
    return allowed


def _position(index: Sequence[int]) -> Position:
    return index[0] if len(index) == 1 else tuple(index)

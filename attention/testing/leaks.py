"""Find outputs of a model that depend on inputs that they must not depend on.

Two independent tests. A nonzero derivative proves a dependence; the linearised model propagates
zeros exactly, so without a dependence the derivative is exactly zero. And a replaced input either
changes the bits of an output or does not; this needs no derivative, so it works for integer tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

Position = int | tuple[int, ...]
MaySee = ArrayLike | Callable[[Position, Position], bool]


@dataclass(frozen=True)
class Leak:
    """An output that depends on an input that it must not depend on.

    Attributes:
        output: position of the output; (row, position) in a batch.
        input: position of the input.
        evidence: the size of the derivative or of the change.
    """

    output: Position
    input: Position
    evidence: str

    def __str__(self) -> str:
        return (
            f"output {_words(self.output)} depends on input {_words(self.input)}, "
            f"which it must not depend on: {self.evidence}"
        )


@dataclass(frozen=True)
class BlindSpot:
    """An output that does not depend on an input although it may."""

    output: Position
    input: Position

    def __str__(self) -> str:
        return (
            f"output {_words(self.output)} may depend on input {_words(self.input)}, but does not"
        )


@dataclass(frozen=True)
class LeakReport:
    """The result of `find_leaks`; its length is the number of leaks.

    Attributes:
        leaks: sorted by output, then by input.
        blind_spots: no error, but a hint that a mask may hide too much.
        depends: bool `[*output positions, *input positions]`, all dependences that were found.
    """

    leaks: tuple[Leak, ...]
    blind_spots: tuple[BlindSpot, ...]
    depends: np.ndarray

    @property
    def ok(self) -> bool:
        """Whether there are no leaks."""
        return not self.leaks

    def __len__(self) -> int:
        return len(self.leaks)

    def __iter__(self) -> Iterator[Leak]:
        return iter(self.leaks)

    def __str__(self) -> str:
        lines = [f"{len(self.leaks)} leaks, {len(self.blind_spots)} blind spots"]
        return "\n".join([*lines, *map(str, self.leaks), *map(str, self.blind_spots)])

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
        may_see: the allowed dependences. A function of (output position, input position), where a
            position is a number, or (row, position) in a batch; or a bool array, either
            `[*output positions, *input positions]`, or `[T, S]` or `[..., T, S]`, one for each row:
            then rows must not depend on each other.
        vocab_size: replacement tokens are below it; the largest token plus one by default.
        trials: number of random directions, and number of replacements, for each position.
        nonfinite: also set float positions to NaN, one at a time. A model that multiplies masked
            inputs by zero fails this test.

    Raises:
        ValueError: an array `may_see` of another shape, trials below 1, or fewer than 2 tokens.

    >>> import jax.numpy as jnp
    >>> leaks = find_leaks(lambda x: x + x[::-1], jnp.ones((2, 3)), jnp.eye(2))
    >>> [(leak.output, leak.input) for leak in leaks]
    [(0, 1), (1, 0)]
    """
    if trials < 1:
        raise ValueError(f"trials must be at least 1, got {trials}")
    if vocab_size is not None and vocab_size < 2:
        raise ValueError(f"vocab_size must be at least 2 to replace a token, got {vocab_size}")
    inputs = jnp.asarray(inputs)
    tokens = jnp.issubdtype(inputs.dtype, jnp.integer)
    input_shape = inputs.shape if tokens else inputs.shape[:-1]
    output_shape = jax.eval_shape(model, inputs).shape[:-1]
    allowed = _allowed(may_see, output_shape, input_shape)
    run = jax.jit(model)
    effects = [] if tokens else [_derivatives(model, inputs, input_shape, trials)]
    replacements = _replacements(inputs, vocab_size, trials)
    effects.append(_changes(run, inputs, input_shape, replacements))
    if nonfinite and not tokens:
        effects.append(_changes(run, inputs, input_shape, [jnp.full_like(inputs, jnp.nan)]))

    depends = np.any([effect > 0 for _, effect in effects], axis=0)
    leaks = []
    rank = len(output_shape)
    for pair in map(tuple, np.argwhere(depends & ~allowed).tolist()):
        words = [f"{name} {effect[pair]:.3g}" for name, effect in effects if effect[pair] > 0]
        leaks.append(Leak(_position(pair[:rank]), _position(pair[rank:]), ", ".join(words)))
    blind_spots = [
        BlindSpot(_position(pair[:rank]), _position(pair[rank:]))
        for pair in map(tuple, np.argwhere(allowed & ~depends).tolist())
    ]
    return LeakReport(tuple(leaks), tuple(blind_spots), depends)


def _derivatives(
    model: Callable[[Array], Array], inputs: Array, input_shape: tuple[int, ...], trials: int
) -> tuple[str, np.ndarray]:
    """Return the largest derivatives, `[*output positions, *input positions]`."""
    random = np.random.default_rng(0)
    directions = jnp.asarray(random.standard_normal((trials, *inputs.shape)), inputs.dtype)

    @jax.jit
    def along(inputs: Array, directions: Array) -> Array:
        _, linear = jax.linearize(model, inputs)

        def derivative(position: Array, direction: Array) -> Array:
            selected = jnp.arange(direction.size // inputs.shape[-1]) == position
            tangents = jnp.where(selected.reshape(*input_shape, 1), direction, 0)
            return jnp.abs(linear(tangents)).max(axis=-1)

        derivatives = jax.lax.map(
            lambda position: jax.vmap(lambda direction: derivative(position, direction))(
                directions
            ),
            jnp.arange(int(np.prod(input_shape))),
        )
        return derivatives.max(axis=1)

    return "derivative", _to_last(np.asarray(along(inputs, directions), np.float64), input_shape)


def _changes(
    run: Callable[[Array], Array],
    inputs: Array,
    input_shape: tuple[int, ...],
    replacements: list[Array],
) -> tuple[str, np.ndarray]:
    """Return the changes of the outputs when one position is replaced; a new NaN counts as inf.

    The same compiled program runs once for each position, so that equal inputs give equal bits.
    """
    before = np.asarray(run(inputs), np.float64)
    effects = []
    for position in np.ndindex(*input_shape):
        effect = np.zeros(before.shape[:-1])
        for replacement in replacements:
            after = np.asarray(run(inputs.at[position].set(replacement[position])), np.float64)
            same = (after == before) | (np.isnan(after) & np.isnan(before))
            change = np.where(same, 0, np.nan_to_num(np.abs(after - before), nan=np.inf))
            effect = np.maximum(effect, change.max(axis=-1))
        effects.append(effect)
    is_nan = any(bool(jnp.isnan(replacement).any()) for replacement in replacements)
    name = "change by NaN" if is_nan else "change by another input"
    return name, _to_last(np.array(effects), input_shape)


def _replacements(inputs: Array, vocab_size: int | None, trials: int) -> list[Array]:
    """Return arrays like the inputs that differ from them in every position."""
    random = np.random.default_rng(1)
    if not jnp.issubdtype(inputs.dtype, jnp.integer):
        drawn = 3 * random.standard_normal((trials, *inputs.shape))
        drawn[0] = -np.asarray(inputs, np.float64)  # for models that depend on signs only
        return list(jnp.asarray(drawn, inputs.dtype))
    size = max(2, int(inputs.max()) + 1) if vocab_size is None else vocab_size
    steps = random.integers(1, size, (trials, *inputs.shape))  # never the same token
    return [jnp.asarray((np.asarray(inputs) + step) % size, inputs.dtype) for step in steps]


def _allowed(
    may_see: MaySee, output_shape: tuple[int, ...], input_shape: tuple[int, ...]
) -> np.ndarray:
    """Return the allowed dependences, bool `[*output positions, *input positions]`."""
    if callable(may_see):
        allowed = np.zeros((*output_shape, *input_shape), bool)
        for output in np.ndindex(*output_shape):
            for given in np.ndindex(*input_shape):
                allowed[output + given] = may_see(_position(output), _position(given))
        return allowed
    given = np.asarray(may_see, bool)
    if given.shape == (*output_shape, *input_shape):
        return given
    rows, sizes = output_shape[:-1], (output_shape[-1], input_shape[-1])
    fits = given.shape[-2:] == sizes and given.ndim <= len(output_shape) + 1
    if rows != input_shape[:-1] or not fits:
        raise ValueError(
            f"may_see needs the shape {(*output_shape, *input_shape)} of all pairs, or {sizes} "
            f"for each row, got {given.shape}"
        )
    per_row = np.broadcast_to(given, (*rows, *given.shape[-2:]))
    allowed = np.zeros((*output_shape, *input_shape), bool)
    for row in np.ndindex(*rows):
        allowed[(*row, slice(None), *row)] = per_row[row]
    return allowed


def _to_last(effects: np.ndarray, input_shape: tuple[int, ...]) -> np.ndarray:
    """Map [input positions, *output positions] to [*output positions, *input positions]."""
    return np.moveaxis(effects, 0, -1).reshape(*effects.shape[1:], *input_shape)


def _position(index: tuple[int, ...]) -> Position:
    return index[0] if len(index) == 1 else index


def _words(position: Position) -> str:
    if isinstance(position, int):
        return str(position)
    *rows, last = position
    return f"(row {', '.join(map(str, rows))}, position {last})"

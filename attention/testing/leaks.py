"""Which outputs of a model depend on which inputs, and which of them may not.

Two independent proofs. A derivative that is not zero is a dependence; the linearisation of a model
carries zeros exactly, so one that is absent is zero to the bit. And an input that is changed for
another either changes an output or does not, by the bits: this needs no derivative, and so it is
how integer tokens are tried.
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
    """An output that depends on an input which it may not see.

    Attributes:
        output: its position, (row, position) in a batch.
        input: that of the input.
        evidence: how that shows.
    """

    output: Position
    input: Position
    evidence: str

    def __str__(self) -> str:
        return (
            f"output {_words(self.output)} depends on input {_words(self.input)}, "
            f"which it may not see: {self.evidence}"
        )


@dataclass(frozen=True)
class BlindSpot:
    """An output that does not depend on an input which it may see."""

    output: Position
    input: Position

    def __str__(self) -> str:
        return (
            f"output {_words(self.output)} may see input {_words(self.input)}, "
            "but does not depend on it"
        )


@dataclass(frozen=True)
class LeakReport:
    """What `find_leaks` found; true, and as long, as there are leaks.

    Attributes:
        leaks: the reason to worry, by output and then by input.
        blind_spots: for information: a mask may hide too much, or a model may not care.
        depends: bool `[*output positions, *input positions]`, all that was found.
    """

    leaks: tuple[Leak, ...]
    blind_spots: tuple[BlindSpot, ...]
    depends: np.ndarray

    @property
    def ok(self) -> bool:
        """Whether nothing leaks."""
        return not self.leaks

    def __len__(self) -> int:
        return len(self.leaks)

    def __iter__(self) -> Iterator[Leak]:
        return iter(self.leaks)

    def __str__(self) -> str:
        lines = [f"{len(self.leaks)} leaks, {len(self.blind_spots)} blind spots"]
        return "\n".join([*lines, *map(str, self.leaks), *map(str, self.blind_spots)])

    def raise_if_failed(self) -> None:
        """Raises an AssertionError with the leaks, if there are any."""
        if self.leaks:
            raise AssertionError("\n".join(map(str, self.leaks)))


def find_leaks(
    model: Callable[[Array], Array],
    inputs: ArrayLike,
    may_see: MaySee,
    *,
    vocab_size: int | None = None,
    trials: int = 2,
    poison: bool = False,
) -> LeakReport:
    """Finds every pair of an output and an input position that depend on each other and may not.

    Args:
        model: maps inputs to outputs `[..., T, any width]`; jax must be able to trace it.
        inputs: floats `[..., S, D]`, or integer tokens `[..., S]`. Only positions in front of the
            last axis of floats are told apart.
        may_see: who may depend on whom. A function of (output position, input position), where a
            position is a number, or (row, position) in a batch; or a bool array, either
            `[*output positions, *input positions]`, or `[T, S]` or `[..., T, S]`, one for each row:
            then no row may see another.
        vocab_size: of tokens, to draw others from; one more than the largest by default.
        trials: in how many directions a position is moved, and for how many others it is changed.
        poison: also sets float positions to NaN, one at a time. A model that only multiplies what
            it hides by zero fails this.

    Raises:
        ValueError: an array `may_see` of another shape, no trial, or a vocabulary without others.

    >>> import jax.numpy as jnp
    >>> leaks = find_leaks(lambda x: x + x[::-1], jnp.ones((2, 3)), jnp.eye(2))
    >>> [(leak.output, leak.input) for leak in leaks]
    [(0, 1), (1, 0)]
    """
    if trials < 1:
        raise ValueError(f"trials must be at least 1, got {trials}")
    if vocab_size is not None and vocab_size < 2:
        raise ValueError(f"a vocab_size of {vocab_size} has no other token to try")
    inputs = jnp.asarray(inputs)
    tokens = jnp.issubdtype(inputs.dtype, jnp.integer)
    places = inputs.shape if tokens else inputs.shape[:-1]
    seen = jax.eval_shape(model, inputs).shape[:-1]
    allowed = _allowed(may_see, seen, places)
    run = jax.jit(model)
    proofs = [] if tokens else [_derivatives(model, inputs, places, trials)]
    proofs.append(_changes(run, inputs, places, _others(inputs, vocab_size, trials)))
    if poison and not tokens:
        proofs.append(_changes(run, inputs, places, [jnp.full_like(inputs, jnp.nan)]))

    depends = np.any([effect > 0 for _, effect in proofs], axis=0)
    leaks = []
    for place in map(tuple, np.argwhere(depends & ~allowed).tolist()):
        words = [f"{name} {effect[place]:.3g}" for name, effect in proofs if effect[place] > 0]
        output, given = place[: len(seen)], place[len(seen) :]
        leaks.append(Leak(_position(output), _position(given), ", ".join(words)))
    blind = [
        BlindSpot(_position(place[: len(seen)]), _position(place[len(seen) :]))
        for place in map(tuple, np.argwhere(allowed & ~depends).tolist())
    ]
    return LeakReport(tuple(leaks), tuple(blind), depends)


def _derivatives(
    model: Callable[[Array], Array], inputs: Array, places: tuple[int, ...], trials: int
) -> tuple[str, np.ndarray]:
    """The largest derivative `[*output positions, *input positions]` along random directions."""
    random = np.random.default_rng(0)
    directions = jnp.asarray(random.standard_normal((trials, *inputs.shape)), inputs.dtype)

    @jax.jit
    def along(inputs: Array, directions: Array) -> Array:
        _, linear = jax.linearize(model, inputs)

        def move(place: Array, direction: Array) -> Array:
            here = jnp.arange(direction.size // inputs.shape[-1]) == place
            alone = jnp.where(here.reshape(*places, 1), direction, 0)
            return jnp.abs(linear(alone)).max(axis=-1)

        each = jax.lax.map(
            lambda place: jax.vmap(lambda direction: move(place, direction))(directions),
            jnp.arange(int(np.prod(places))),
        )
        return each.max(axis=1)

    return "derivative", _last(np.asarray(along(inputs, directions), np.float64), places)


def _changes(
    run: Callable[[Array], Array], inputs: Array, places: tuple[int, ...], others: list[Array]
) -> tuple[str, np.ndarray]:
    """How far outputs move as one position is changed at a time; NaN where there was none is inf.

    One program for all, called once for each: equal work gives equal bits.
    """
    before = np.asarray(run(inputs), np.float64)
    effects = []
    for place in np.ndindex(*places):
        effect = np.zeros(before.shape[:-1])
        for other in others:
            after = np.asarray(run(inputs.at[place].set(other[place])), np.float64)
            same = (after == before) | (np.isnan(after) & np.isnan(before))
            moved = np.where(same, 0, np.nan_to_num(np.abs(after - before), nan=np.inf))
            effect = np.maximum(effect, moved.max(axis=-1))
        effects.append(effect)
    poisoned = any(bool(jnp.isnan(other).any()) for other in others)
    name = "a NaN in its place changes it by" if poisoned else "another in its place changes it by"
    return name, _last(np.array(effects), places)


def _others(inputs: Array, vocab_size: int | None, trials: int) -> list[Array]:
    """What to put in place of each input."""
    random = np.random.default_rng(1)
    if not jnp.issubdtype(inputs.dtype, jnp.integer):
        drawn = 3 * random.standard_normal((trials, *inputs.shape))
        drawn[0] = -np.asarray(inputs, np.float64)  # what looks at signs alone is looked at too
        return list(jnp.asarray(drawn, inputs.dtype))
    size = max(2, int(inputs.max()) + 1) if vocab_size is None else vocab_size
    steps = random.integers(1, size, (trials, *inputs.shape))  # never back to itself
    return [jnp.asarray((np.asarray(inputs) + step) % size, inputs.dtype) for step in steps]


def _allowed(may_see: MaySee, seen: tuple[int, ...], places: tuple[int, ...]) -> np.ndarray:
    """Bool `[*output positions, *input positions]`."""
    if callable(may_see):
        allowed = np.zeros((*seen, *places), bool)
        for output in np.ndindex(*seen):
            for given in np.ndindex(*places):
                allowed[output + given] = may_see(_position(output), _position(given))
        return allowed
    given = np.asarray(may_see, bool)
    if given.shape == (*seen, *places):
        return given
    rows, same_rows = seen[:-1], seen[:-1] == places[:-1]
    if not same_rows or given.shape[-2:] != (seen[-1], places[-1]) or given.ndim > len(seen) + 1:
        raise ValueError(
            f"may_see needs the shape {(*seen, *places)} of all pairs, or {(seen[-1], places[-1])} "
            f"for each row, got {given.shape}"
        )
    own = np.broadcast_to(given, (*rows, *given.shape[-2:]))
    allowed = np.zeros((*seen, *places), bool)
    for row in np.ndindex(*rows):
        allowed[(*row, slice(None), *row)] = own[row]
    return allowed


def _last(effects: np.ndarray, places: tuple[int, ...]) -> np.ndarray:
    """[input positions, *output positions] -> [*output positions, *input positions]."""
    return np.moveaxis(effects, 0, -1).reshape(*effects.shape[1:], *places)


def _position(place: tuple[int, ...]) -> Position:
    return place[0] if len(place) == 1 else place


def _words(position: Position) -> str:
    if isinstance(position, int):
        return str(position)
    *rows, last = position
    return f"(row {', '.join(map(str, rows))}, position {last})"

"""Rows that take turns: where one has ended, the next that waits takes its place.

In a batch every row waits for the longest answer. Rows of a queue do not: continuous
batching, the iteration-level scheduling of Yu et al. 2022 ("Orca", section 3).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from attention.decoding.loop import Predict, Progress, Strategy, goes_on, loop

Requests = TypeVar("Requests")
Search = TypeVar("Search")
Tree = TypeVar("Tree")

SHARE = 8  # of the places: with every eighth free, rows are admitted, by a call of `prefill`


@dataclass(frozen=True, eq=False)
class Queue(Generic[Requests]):
    """Q rows, of which as many are followed at once as there are places, each for itself.

    It stands where a batch would have its state. Of what belongs to a row a step cannot close over
    anything: its state brings it along, `WithMemory`.

    Attributes:
        prefill: from the requests of a few rows, leaves `[F, *]`, to what the step knows of them
            before their first token, leaves `[F, *]`. It is called in the loop, as soon as an
            eighth of the places is free, which is F. Caches may have been read into, but room is
            checked as for empty ones.
        requests: what is known of each row, leaves `[Q, *]`.
        places: how many rows are followed at once.
        present: bool `[Q]`, which rows are followed; the others are given up. All by default.
        axes: where leaves have their rows once hypotheses stand before them; `beam_search` sets it.

    Raises:
        ValueError: no place, or requests without an array.
    """

    prefill: Callable[[Requests], Any]
    requests: Requests
    places: int
    present: Array | None = None
    axes: object = 0

    def __post_init__(self) -> None:
        if self.places < 1:
            raise ValueError(f"a queue needs at least 1 place, got {self.places}")
        if not jax.tree.leaves(self.requests):
            raise ValueError("a queue needs an array of what is known of each row, got none")

    @property
    def refill(self) -> int:
        """F, how many rows are admitted at once."""
        return max(1, min(self.places, len(jax.tree.leaves(self.requests)[0])) // SHARE)

    def prefilled(self) -> object:
        """Shapes of what enters at once."""
        return jax.eval_shape(self.prefill, _shapes_of_rows(self.requests, self.refill))

    def then(self, change: Callable[[Any], Any], axes: object) -> "Queue[Requests]":
        """The same rows, that enter with what `change` makes of their state."""
        return replace(self, prefill=lambda requests: change(self.prefill(requests)), axes=axes)


def example(state: object, start: Array) -> tuple[Any, Any]:
    """Shapes of a state and of what its rows read first: of a batch, or of a few of a queue.

    Raises:
        TypeError: first tokens that are not integers.
        ValueError: first tokens that are not one for each row, requests for more or fewer rows,
            `present` that is not a bool of each, or a state without rows in front.
    """
    if not jnp.issubdtype(jnp.result_type(start), jnp.integer):
        raise TypeError(f"start holds the first token of each row, got {jnp.result_type(start)}")
    if jnp.ndim(start) != 1:
        raise ValueError(f"start needs one token for each row [B], got shape {jnp.shape(start)}")
    if not isinstance(state, Queue):
        return jax.eval_shape(lambda: (state, start))
    rows = len(start)
    for path, leaf in jax.tree.leaves_with_path(state.requests):
        if leaf.shape[:1] != (rows,):
            raise ValueError(
                f"start has {rows} rows, so every leaf of the requests of a queue needs {rows}, "
                f"got shape {leaf.shape} at requests{jax.tree_util.keystr(path)}"
            )
    present = state.present
    if present is not None and (jnp.shape(present), jnp.result_type(present)) != ((rows,), bool):
        raise ValueError(
            f"present says of each of {rows} rows whether it is followed, so it needs bool "
            f"[{rows}], got {jnp.result_type(present)} {jnp.shape(present)}"
        )
    prefilled, refill = state.prefilled(), state.refill
    for path, leaf in jax.tree.leaves_with_path(prefilled):
        if leaf.shape[:1] != (refill,):
            raise ValueError(
                f"what enters from a queue needs its rows in front, got shape {leaf.shape} for "
                f"{refill} rows at {jax.tree_util.keystr(path)}"
            )
    return prefilled, _shapes_of_rows(start, refill)


def follow_all(
    predict: Predict,
    strategy: Strategy[Search],
    state: object,
    last: object,
    search: Search,
    room: int,
) -> Search:
    """Follows the rows of a batch together, or those of a queue in turn.

    Args:
        predict: as in `loop`.
        strategy: what chooses.
        state: what the step knows before the first token; or a queue.
        last: what the step reads first.
        search: what the strategy knows before the first token.
        room: the most tokens that a row is followed for.

    Returns:
        The search at the end.
    """
    if isinstance(state, Queue):
        return _in_turn(predict, strategy, state, last, search, room)
    rows = strategy.unfinished(search).size
    begun = Progress(jnp.zeros(rows, jnp.int32), last, state, search)
    return loop(predict, strategy, begun, room, enough=rows).search


class _Turns(NamedTuple):
    """Where a queue stands.

    Attributes:
        progress: of the rows that have a place.
        rows: which they are; Q where nobody has been yet.
        admitted: how many of the Q were admitted.
        searches: of all Q; of one that has a place, as it was admitted.
    """

    progress: Progress
    rows: Array
    admitted: Array
    searches: Any


def _in_turn(
    predict: Predict,
    strategy: Strategy[Search],
    queue: Queue,
    last: object,
    searches: Search,
    room: int,
) -> Search:
    total = len(jax.tree.leaves(last)[0])
    places = min(queue.places, total)
    refill = queue.refill
    if not total:
        return searches
    present = jnp.ones(total, bool) if queue.present is None else jnp.asarray(queue.present)
    end = jnp.max(jnp.where(present, 1 + jnp.arange(total, dtype=jnp.int32), 0), initial=0)

    def admit(rows: Array) -> Progress:
        here, last_of, requests, search = _rows((present, last, queue.requests, searches), rows)
        index = jnp.where(here & (rows < total), 0, room).astype(jnp.int32)
        return Progress(index, last_of, queue.prefill(requests), search)

    def turn(turns: _Turns) -> _Turns:
        free = jnp.argsort(goes_on(strategy, turns.progress, room), stable=True)[:refill]
        left = _rows((turns.rows, turns.progress.search), free)
        rows = turns.admitted + jnp.arange(refill, dtype=jnp.int32)
        progress = jax.tree.map(partial(_put, free), axes, turns.progress, admit(rows))
        admitted = turns.admitted + refill
        enough = jnp.where(admitted < end, refill, places)
        progress = loop(predict, strategy, progress, room, enough)
        return _Turns(
            progress, turns.rows.at[free].set(rows), admitted, _kept(turns.searches, *left)
        )

    nobody = jnp.full(places, total, jnp.int32)
    shapes = jax.eval_shape(admit, nobody[:refill])
    axes = jax.tree.broadcast(Progress(0, 0, queue.axes, 0), shapes)
    empty = jax.tree.map(partial(_zeros, places), axes, shapes)
    empty = empty._replace(index=jnp.full_like(nobody, room))  # so that all places are free
    first = _Turns(empty, nobody, jnp.int32(0), searches)
    turns = jax.lax.while_loop(lambda turns: turns.admitted < end, turn, first)
    return _kept(turns.searches, turns.rows, turns.progress.search)


def _shapes_of_rows(tree: Tree, number: int) -> Tree:
    """Of so many rows of leaves `[Q, *]`."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((number, *leaf.shape[1:]), leaf.dtype), tree
    )


def _rows(tree: Tree, rows: Array) -> Tree:
    """Rows `[F]` of leaves `[Q, *]`; the last of them for one that there is not."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0, mode="clip"), tree)


def _put(places: Array, axis: int, into: Array, some: Array) -> Array:
    """Rows `[F]` of one array into places of another."""
    index = (*[slice(None)] * axis, places)
    return into.at[index].set(some, mode="promise_in_bounds", unique_indices=True)


def _zeros(places: int, axis: int, like: jax.ShapeDtypeStruct) -> Array:
    """As many rows of zeros as there are places."""
    return jnp.zeros((*like.shape[:axis], places, *like.shape[axis + 1 :]), like.dtype)


def _kept(searches: Search, rows: Array, found: Search) -> Search:
    """With what was found of some rows; of one that there is not, nothing is kept."""
    return jax.tree.map(lambda every, some: every.at[rows].set(some, mode="drop"), searches, found)

"""Batches of arrays and lists of ids: padding, buckets, slots, and results in the given order.

Arrays of lists are NumPy arrays, which are made and indexed without compiling anything.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from attention.decoding.output import GenerationOutput
from attention.decoding.program import (
    GenerationProgram,
    GenerativeModel,
    Rows,
    compiled,
    merge_slots,
    split_slots,
)

SHORTEST = 16  # tokens: shorter inputs are padded rather than compiled for
ROWS_PER_SLOT = 1, 8, 64  # that programs are compiled for
MOST_ROWS = 64  # of a batch of lists, without slots

Run = Callable[[GenerationProgram, Rows, int, int], GenerationOutput]
"""`(program, rows, slots, rows per slot) -> output`."""


def runner(model: GenerativeModel, compile: Callable[..., Any]) -> Run:
    """Return a function that runs a program for rows `[B, *]`, compiled unless one is traced."""

    def run(
        program: GenerationProgram, rows: Rows, slots: int, rows_per_slot: int
    ) -> GenerationOutput:
        def split(array: ArrayLike) -> Array:
            numpy = jnp if isinstance(array, jax.core.Tracer) else np
            array = numpy.asarray(array)
            missing = slots * rows_per_slot - len(array)  # these rows are not active
            padding = [(0, missing), *[(0, 0)] * (array.ndim - 1)]
            return split_slots(numpy.pad(array, padding), slots)

        program = replace(program, names=tuple(rows))
        arrays = [split(array) for array in rows.values()]
        leaves = jax.tree.leaves((model, arrays))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return program.generate(model, *arrays)
        return compiled(program, "generate", compile)(model, *arrays)

    return run


def generate_array(
    run: Run, program: GenerationProgram, rows: Rows, slots: int | None
) -> GenerationOutput:
    """Generate answers for all rows of a batch with one program."""
    number = len(rows["active"])
    slots = max(1, number if slots is None else min(slots, number))
    output = run(program, rows, slots, max(1, -(-number // slots)))
    # Outside of jit, each array would compile three programs.
    return jax.jit(_first_rows, static_argnums=1)(output, number)


def generate_lists(
    run: Run,
    passes: Sequence[tuple[int, GenerationProgram]],
    prompts: Sequence[Sequence[int]],
    rows: Rows,
    slots: int | None,
) -> GenerationOutput:
    """Generate answers for lists of ids.

    Args:
        run: runs a program.
        passes: padded lengths in rising order, and programs; an answer that does not finish is
            generated again in the next pass.
        prompts: ids of each input.
        rows: other arrays with a row for each input.
        slots: as in `generate`.
    """
    rows, found = jax.device_get(rows), [None] * len(prompts)
    for length, program in passes:
        remaining = [
            number
            for number, ids in enumerate(prompts)
            if found[number] is None and len(ids) <= length
        ]
        # The longest first, so that few slots are empty when the last rows are decoded.
        remaining.sort(key=lambda number: -len(prompts[number]))
        # All chunks are dispatched before the first result is read.
        results = [
            (chunk, run(program, *given))
            for chunk, *given in _chunks(remaining, prompts, rows, length, slots)
        ]
        options = program.options
        for chunk, output in results:
            output = _first_rows(jax.device_get(output), len(chunk))
            ended = output.lengths.reshape(len(chunk), -1)[:, 0] > 0
            for at, number in enumerate(chunk):
                if ended[at] or options.max_steps == options.stopping.max_tokens:
                    found[number] = jax.tree.map(lambda leaf, at=at: leaf[at], output)
    return _stack(found, options.stopping.pad)


def _chunks(
    remaining: list[int],
    prompts: Sequence[Sequence[int]],
    rows: Rows,
    length: int,
    slots: int | None,
) -> Iterator[tuple[list[int], Rows, int, int]]:
    """Yield the numbers of some inputs, their rows, the slots and the rows per slot."""
    most = MOST_ROWS if slots is None else max(ROWS_PER_SLOT) * slots
    for begin in range(0, len(remaining), most):
        chunk = remaining[begin : begin + most]
        tokens, num_tokens = pad_lists([prompts[number] for number in chunk], length)
        given = {"active": np.ones(len(chunk), bool), "inputs": tokens, "lengths": num_tokens}
        given |= {name: array[np.array(chunk)] for name, array in rows.items()}
        if slots is None:
            yield chunk, given, 1 << (len(chunk) - 1).bit_length(), 1
        else:
            yield chunk, given, slots, next(n for n in ROWS_PER_SLOT if n * slots >= len(chunk))


def _stack(rows: list[GenerationOutput], pad: int) -> GenerationOutput:
    """Return answers of different numbers of steps as one output, as long as the longest answer."""
    if not rows:
        none = np.zeros((0, 0), np.float32)
        return GenerationOutput(none.astype(np.int32), np.zeros(0, np.int32), none.ravel(), none)
    axis = rows[0].lengths.ndim
    longest = max(int(row.lengths.max()) for row in rows)

    def resize(leaf: np.ndarray, value: float = 0) -> np.ndarray:
        leaf = leaf[(slice(None),) * axis + (slice(longest),)]
        widths = [(0, 0)] * leaf.ndim
        widths[axis] = (0, longest - leaf.shape[axis])
        return np.pad(leaf, widths, constant_values=value)

    rows = [
        row._replace(
            tokens=resize(row.tokens, pad),
            log_probs=resize(row.log_probs),
            observed=jax.tree.map(resize, row.observed),
        )
        for row in rows
    ]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def _first_rows(output: GenerationOutput, number: int) -> GenerationOutput:
    """Return the first rows `[B, *]` of leaves `[R, T, *]`."""
    return jax.tree.map(lambda leaf: merge_slots(leaf)[:number], output)


def pad_lists(rows: Sequence[Sequence[int]], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return int32 arrays: tokens `[B, width]`, padded with 0, and lengths `[B]`."""
    tokens = np.zeros((len(rows), width), np.int32)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = ids
    return tokens, np.array([len(ids) for ids in rows], np.int32)


def bucket_lengths(prompts: Sequence[Sequence[int]], buckets: Sequence[int] | None) -> list[int]:
    """Return the lengths that inputs are padded to, by default powers of 2 from `SHORTEST`.

    Raises:
        ValueError: an input longer than all buckets.
    """
    longest = max(map(len, prompts), default=0)
    if buckets is None:
        buckets = [SHORTEST]
        while buckets[-1] < longest:
            buckets.append(2 * buckets[-1])
    if longest > max(buckets):
        raise ValueError(f"an input has {longest} tokens, and the longest bucket {max(buckets)}")
    return sorted(buckets)


def limit_bucket(
    model: GenerativeModel, size: int, prompts: Sequence[Sequence[int]], max_tokens: int
) -> int:
    """Return a bucket that is no longer than inputs of the model can be, nor too short for any.

    An input that is longer itself is refused by `prefill`.
    """
    limit = model.max_input_length(max_tokens) if hasattr(model, "max_input_length") else None
    fitting = [len(ids) for ids in prompts if len(ids) <= size]
    return size if limit is None else max(min(size, limit), *fitting, 1)

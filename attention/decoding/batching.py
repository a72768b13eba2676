"""Batches of arrays and lists of ids: padding, buckets, slots, and results in the given order.

Arrays of lists are NumPy arrays, which are made and indexed without compiling anything.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from attention.decoding.inputs import Tokenizer, encode
from attention.decoding.output import GenerationOutput
from attention.decoding.program import GenerativeModel, Program, Rows, by_slots, by_turns, compiled
from attention.decoding.stopping import Prefix

SHORTEST = 16  # tokens: shorter inputs are padded rather than compiled for
TURNS = 1, 8, 64  # rows per slot that programs are compiled for
MOST_ROWS = 64  # of a batch of lists, without slots


def run_program(
    compile: Callable[..., Any],
    model: GenerativeModel,
    program: Program,
    rows: Rows,
    slots: int,
    turns: int,
) -> GenerationOutput:
    """Run a program for rows `[B, *]`: a compiled one, unless something is traced."""
    program = replace(program, names=tuple(rows))
    arrays = _arrange(rows, slots, turns)
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((model, arrays)))
    return (program if traced else compiled(program, compile))(model, *arrays)


def decode_array(
    run: Callable[..., GenerationOutput], rows: Rows, slots: int | None
) -> GenerationOutput:
    """Decode all rows of a batch in one program."""
    number = len(rows["active"])
    slots = max(1, number if slots is None else min(slots, number))
    return _collect(run(rows, slots, max(1, -(-number // slots))), number)


def decode_lists(
    run: Callable[..., GenerationOutput],
    passes: Sequence[tuple[int, Program]],
    prompts: Sequence[Sequence[int]],
    rows: Rows,
    slots: int | None,
    pad: int,
) -> GenerationOutput:
    """Decode lists of ids.

    Args:
        run: `(program, rows, slots, turns) -> output`.
        passes: padded lengths in rising order, and programs; an answer that does not finish is
            decoded again in the next pass.
        prompts: ids of each input.
        rows: what else belongs to each input.
        slots: as in `generate`.
        pad: fills answers behind their end.
    """
    rows, found = jax.device_get(rows), [None] * len(prompts)
    for length, program in passes:
        waiting = [
            number
            for number, ids in enumerate(prompts)
            if found[number] is None and len(ids) <= length
        ]
        # The longest first, so that few slots are empty when the last rows are decoded.
        waiting.sort(key=lambda number: -len(prompts[number]))
        # All chunks are dispatched before the first result is read.
        results = [
            (chunk, with_least_padding(partial(run, program), *given))
            for chunk, *given in _chunks(waiting, prompts, rows, length, slots)
        ]
        is_last = program.steps == program.stopping.max_tokens
        for chunk, output in results:
            output = _collect(jax.device_get(output), len(chunk))
            ended = output.lengths.reshape(len(chunk), -1)[:, 0] > 0
            for at, number in enumerate(chunk):
                if ended[at] or is_last:
                    found[number] = jax.tree.map(lambda leaf, at=at: leaf[at], output)
    return _joined(found, pad)


def _chunks(
    waiting: list[int],
    prompts: list[list[int]],
    rows: Rows,
    length: int,
    slots: int | None,
) -> Iterator[tuple[list[int], Rows, int, int]]:
    """Yield the numbers of some inputs, their rows, and R and T of the program."""
    most = MOST_ROWS if slots is None else max(TURNS) * slots
    for begin in range(0, len(waiting), most):
        chunk = waiting[begin : begin + most]
        tokens, num_tokens = padded([prompts[number] for number in chunk], length)
        given = {"active": np.ones(len(chunk), bool), "inputs": tokens, "lengths": num_tokens}
        given |= {name: array[chunk] for name, array in rows.items()}
        if slots is None:
            yield chunk, given, 1 << (len(chunk) - 1).bit_length(), 1
        else:
            turns = next(number for number in TURNS if number * slots >= len(chunk))
            yield chunk, given, slots, turns


def _joined(rows: list[GenerationOutput], pad: int) -> GenerationOutput:
    """Return answers of different numbers of steps as one output, as long as the longest answer."""
    if not rows:
        none = np.zeros((0, 0), np.float32)
        return GenerationOutput(none.astype(np.int32), np.zeros(0, np.int32), none.ravel(), none)
    axis = rows[0].lengths.ndim
    longest = max(int(row.lengths.max()) for row in rows)

    def resized(leaf: np.ndarray, value: float = 0) -> np.ndarray:
        leaf = leaf[(slice(None),) * axis + (slice(longest),)]
        widths = [(0, 0)] * leaf.ndim
        widths[axis] = (0, longest - leaf.shape[axis])
        return np.pad(leaf, widths, constant_values=value)

    rows = [
        row._replace(
            tokens=resized(row.tokens, pad),
            log_probs=resized(row.log_probs),
            observed=jax.tree.map(resized, row.observed),
        )
        for row in rows
    ]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def _arrange(rows: Rows, slots: int, turns: int) -> list[Array]:
    """Return arrays `[R, T, *]` of at most R·T rows `[B, *]`; the rows added are not active."""

    def one(array: ArrayLike) -> Array:
        numpy = jnp if isinstance(array, jax.core.Tracer) else np
        array = numpy.asarray(array)
        missing = slots * turns - len(array)
        padded = numpy.pad(array, [(0, missing), *[(0, 0)] * (array.ndim - 1)])
        return by_slots(padded, slots)

    return [one(array) for array in rows.values()]


def _collect(output: GenerationOutput, number: int) -> GenerationOutput:
    """Return the first rows `[B, *]` of leaves `[R, T, *]`."""
    return jax.tree.map(lambda leaf: by_turns(leaf)[:number], output)


def padded(rows: Sequence[Sequence[int]], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return int32 arrays: tokens `[B, width]`, padded behind with 0, and lengths `[B]`."""
    tokens = np.zeros((len(rows), width), np.int32)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = ids
    return tokens, np.array([len(ids) for ids in rows], np.int32)


def bucket_lengths(longest: int, buckets: Sequence[int] | None) -> list[int]:
    """Return the lengths that inputs are padded to.

    Args:
        longest: length of the longest input.
        buckets: lengths; by default powers of 2 from `SHORTEST`.

    Raises:
        ValueError: an input longer than all buckets.
    """
    if buckets is None:
        buckets = [SHORTEST]
        while buckets[-1] < longest:
            buckets.append(2 * buckets[-1])
    if longest > max(buckets):
        raise ValueError(f"an input has {longest} tokens, and the longest bucket {max(buckets)}")
    return sorted(buckets)


def with_least_padding(call: Callable[..., Any], rows: Rows, *args: Any) -> Any:  # noqa: ANN401
    """Call a function of padded rows; if it fails, with inputs as wide as the longest.

    Padding may need more positions than a model has where the inputs need fewer.

    Raises:
        ValueError: by the function, for inputs that are as wide as the longest.
    """
    longest = int(np.max(rows["lengths"]))
    if longest < rows["inputs"].shape[1]:
        try:
            return call(rows, *args)
        except ValueError:
            rows = {**rows, "inputs": rows["inputs"][:, :longest]}
    return call(rows, *args)


def prefix_rows(
    prefix: Prefix | Sequence[Any] | None, tokenizer: Tokenizer | None, max_tokens: int
) -> Rows:
    """Return the arrays of a prefix; lists are padded to a power of 2."""
    if prefix is None:
        return {}
    if not isinstance(prefix, Prefix):
        ids = encode(prefix, tokenizer, "prefix")
        longest = max(1, *map(len, ids))
        width = max(longest, min(1 << (longest - 1).bit_length(), max_tokens))
        prefix = Prefix(*padded(ids, width))
    return {"prefix": prefix.tokens, "prefix_lengths": prefix.lengths}

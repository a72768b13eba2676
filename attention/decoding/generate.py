"""Text generation with any model that has `prefill` and `step`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from attention.decoding.inputs import (
    Tokenizer,
    array_rows,
    bucket_lengths,
    check_not_empty,
    encode,
    encode_stop,
    is_array,
    padded,
    random_keys,
    start_tokens,
    texts,
    with_least_padding,
)
from attention.decoding.loop import Observe
from attention.decoding.output import GenerationOutput
from attention.decoding.processors import LogitProcessor
from attention.decoding.program import (
    GenerativeModel,
    Program,
    Rows,
    arrange,
    collect,
    compiled,
)
from attention.decoding.stopping import Prefix, StoppingCriteria
from attention.decoding.strategy import Greedy, Strategy

TURNS = 1, 8, 64  # rows per slot that programs are compiled for
MOST_ROWS = 64  # of a batch of lists, without slots


def generate(
    model: GenerativeModel,
    inputs: ArrayLike | Sequence[Sequence[int]] | Sequence[str],
    *,
    strategy: Strategy = Greedy(),  # noqa: B008 - frozen
    max_tokens: int,
    lengths: ArrayLike | None = None,
    start: ArrayLike | None = None,
    stop: int | str | Sequence[int | str | Sequence[int]] = (),
    min_tokens: int = 0,
    pad: int = 0,
    prefix: Prefix | Sequence[Sequence[int]] | Sequence[str] | None = None,
    logit_processors: Sequence[LogitProcessor] = (),
    rng: Array | None = None,
    returning: Sequence[str] = (),
    observe: Observe | None = None,
    tokenizer: Tokenizer | None = None,
    slots: int | None = None,
    max_steps: int | Callable[[int], int] | None = None,
    buckets: Sequence[int] | None = None,
    cache_dtype: DTypeLike | None = None,
    compile: Callable[..., Any] = jax.jit,
) -> GenerationOutput:
    """Generate a continuation, or a translation, of each input.

    Arrays may be traced: `generate` then is a part of the caller's program. Otherwise one program
    is compiled for each shape, and used again by later calls with equal settings; functions among
    them, such as logit processors, are equal if they are the same object.

    Lists are padded to a few lengths (buckets), and inputs of similar length are decoded together.
    An input whose answer does not finish within `max_steps` is decoded again with the next bucket,
    and with `max_tokens` in the end.

    Args:
        model: any model with `prefill` and `step`, see `GenerativeModel`.
        inputs: int `[B, P]`, padded behind; a list of lists of ids; or a list of strings.
        strategy: `Greedy()`, `Sample(...)`, `Beam(...)` or any other `Strategy`.
        max_tokens: largest number of tokens of an answer, prefix and end included.
        lengths: int `[B]`, number of valid tokens of each row of an array; P by default.
        start: the token, or `[B]` tokens, that an encoder-decoder model reads first.
        stop: an id, ids, or sequences of ids, that end an answer; strings with a tokenizer.
        min_tokens: smallest number of tokens of an answer.
        pad: fills answers behind their end.
        prefix: what the answers begin with; they score 0 and do not count in a length penalty.
        logit_processors: functions `(logits, History) -> logits`, applied in order.
        rng: a random key, or one for each row.
        returning: names of results of attention that `model.step` returns; they are observed.
        observe: a function of the `Output` of a step to leaves `[B, *]`, kept for each token; by
            default its `attention`, if `returning` names anything.
        tokenizer: an object with `encode` and `decode`; the output then has `text`.
        slots: number of rows that are decoded at once; a finished row is replaced by the next
            (continuous batching). By default all rows of an array, or batches of lists.
        max_steps: number of tokens after which an unfinished row is discarded (arrays: length 0 and
            score -inf) or decoded again (lists); or a function of the padded length of the inputs.
        buckets: lengths that lists are padded to; by default powers of 2 from 16. Longer ones than
            the positions of the model cannot be used.
        cache_dtype: of cached keys and values.
        compile: maps a function of `(model, *arrays [R, *])` to a compiled one; it may shard R.

    Returns:
        The answers, `...` = B, or B and n_best. For lists, numpy arrays as long as the longest.

    Raises:
        TypeError: ids that are not integers.
        ValueError: arguments that do not fit together; the message is one sentence.
    """
    stopping = StoppingCriteria(max_tokens, encode_stop(stop, tokenizer), min_tokens, pad)
    if slots is not None and slots < 1:
        raise ValueError(f"slots must be at least 1, got {slots}")
    program = Program(
        strategy=strategy,
        stopping=stopping,
        logit_processors=tuple(logit_processors),
        observe=observe,
        max_steps=max_tokens,
        returning=tuple(returning),
        cache_dtype=cache_dtype,
        rng_impl=None if rng is None else jax.random.key_impl(rng),
        names=(),
    )

    def steps(length: int) -> int:
        found = max_steps(length) if callable(max_steps) else max_steps
        return max_tokens if found is None else min(found, max_tokens)

    if is_array(inputs):
        rows = array_rows(model, inputs, lengths, start, prefix, rng)
        number = len(rows["active"])
        width = number if slots is None else max(1, min(slots, number))
        program = replace(program, max_steps=steps(rows["inputs"].shape[1]))
        turns = -(-number // max(1, width))
        output = collect(_call(program, compile, model, rows, width, max(1, turns)), number)
        if tokenizer is not None:
            output = output._replace(text=texts(jax.device_get(output), tokenizer, stopping))
        return output
    if lengths is not None:
        raise ValueError("lengths are for arrays: a list has the length of each of its inputs")
    prompts = encode(inputs, tokenizer, "inputs")
    check_not_empty(prompts)
    keep_shapes = bool(returning) or observe is not None  # observed arrays are as wide as inputs
    sizes = bucket_lengths(max(map(len, prompts), default=0), buckets)
    passes = [(length, max_tokens if keep_shapes else steps(length)) for length in sizes]
    passes = passes[-1:] if keep_shapes else passes
    if passes[-1][1] < max_tokens:
        passes.append((sizes[-1], max_tokens))
    rows = start_tokens(model, start, len(prompts)) | random_keys(rng, len(prompts))
    rows |= _prefix_rows(prefix, tokenizer, max_tokens)
    rows = {name: np.asarray(array) for name, array in rows.items()}
    found: list[Any] = [None] * len(prompts)
    for length, max_steps_now in passes:
        current = replace(program, max_steps=max_steps_now)
        waiting = [
            number
            for number, ids in enumerate(prompts)
            if found[number] is None and len(ids) <= length
        ]
        # The longest first, so that few slots are empty when the last rows are decoded.
        waiting.sort(key=lambda number: -len(prompts[number]))
        # All chunks are dispatched before the first result is read.
        results = [
            (chunk, with_least_padding(partial(_call, current, compile, model), *given))
            for chunk, *given in _chunks(waiting, prompts, rows, length, slots)
        ]
        for chunk, output in results:
            output = collect(jax.device_get(output), len(chunk))
            ended = output.lengths.reshape(len(chunk), -1)[:, 0] > 0
            for at, number in enumerate(chunk):
                if ended[at] or max_steps_now == max_tokens:
                    found[number] = jax.tree.map(lambda leaf, at=at: leaf[at], output)
    output = _stacked(found, pad)
    if tokenizer is not None:
        output = output._replace(text=texts(output, tokenizer, stopping))
    return output


def _call(
    program: Program,
    compile: Callable[..., Any],
    model: GenerativeModel,
    rows: Rows,
    slots: int,
    turns: int,
) -> GenerationOutput:
    """Run a program for rows `[B, *]`: a compiled one, unless something is traced."""
    program = replace(program, names=tuple(rows))
    arrays = arrange(rows, slots, turns)
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((model, arrays)))
    return (program if traced else compiled(program, compile))(model, *arrays)


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
        given |= {name: array[np.array(chunk)] for name, array in rows.items()}
        if slots is None:
            yield chunk, given, 1 << (len(chunk) - 1).bit_length(), 1
        else:
            turns = next(number for number in TURNS if number * slots >= len(chunk))
            yield chunk, given, slots, turns


def _prefix_rows(
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


def _stacked(rows: list[GenerationOutput], pad: int) -> GenerationOutput:
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

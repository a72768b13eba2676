"""Text generation with any model that has `prefill` and `step`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from attention.decoding.inputs import (
    Tokenizer,
    bucket_lengths,
    limit_bucket,
    pad_lists,
    prepare,
    stop_strings,
)
from attention.decoding.output import GenerationOutput
from attention.decoding.program import (
    GenerationProgram,
    GenerativeModel,
    Rows,
    compiled,
    merge_slots,
    split_slots,
)
from attention.decoding.sampling import Greedy, LogitProcessor, Observe, Strategy, TokenStrategy
from attention.decoding.stopping import Prefix
from attention.decoding.text import AnswerText, with_text

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
    Inputs without a finished answer after `max_steps` are decoded again with the next bucket, and
    with `max_tokens` at last.

    Where logit processors or the logits themselves exclude every token, a row has no answer: length
    0 and score -inf (in beam search, if this is so for all of its hypotheses).

    A string in `stop` ends the decoding of an answer at the ids that the tokenizer has for it, and
    at any token whose text contains it, if the model or the tokenizer has a `vocab_size`. Any other
    ids whose text contains it, for instance two tokens that each contain half of it, do not end the
    decoding: the answer is cut when all answers are decoded. Either way the answer ends with the
    first token with which its text contains the string (`tokens`, `lengths`, `log_probs`,
    `observed`, and `scores` except those of beams), and `text` ends in front of the string.

    Known ids must lie in the vocabulary, if the model has a `vocab_size`. Traced ids are not
    checked: the models of this library return NaN for those outside of it.

    Args:
        model: any model with `prefill` and `step`, see `GenerativeModel`.
        inputs: int `[B, P]`, padded at the end; a list of lists of ids; or a list of strings.
        strategy: `Greedy()`, `Sample(...)`, `Beam(...)` or any other `Strategy`.
        max_tokens: largest number of tokens of an answer, prefix and end included.
        lengths: int `[B]`, number of valid tokens of each row of an array; P by default, so that
            padding is read as tokens of the prompt: pass `lengths` whenever rows are padded.
        start: the token, or `[B]` tokens, that an encoder-decoder model reads first.
        stop: an id, ids, or sequences of ids, that end an answer; strings with a tokenizer, see
            below.
        min_tokens: smallest number of tokens of an answer.
        pad: the token after the end of an answer.
        prefix: tokens that the answers begin with; see `Prefix`.
        logit_processors: functions `(logits, History) -> logits`, applied in order.
        rng: a random key, or one for each row.
        returning: a list of names of results of attention that `model.step` returns; they are
            observed.
        observe: a function of the `Output` of a step to leaves `[B, *]`, kept for each token; by
            default its `attention`, if `returning` names anything.
        tokenizer: an object with `encode` and `decode`; the output then has `text`. If `encode` has
            an argument `special_tokens` or `add_special_tokens`, it is False for stop and prefix.
        slots: number of rows that are decoded at once; a finished row is replaced by the next
            (continuous batching). By default all rows of an array, or batches of lists.
        max_steps: number of tokens after which an unfinished row is discarded (arrays: length 0 and
            score -inf) or decoded again (lists); or a function of the padded length of the inputs.
        buckets: lengths that lists are padded to; by default powers of 2 from 16.
        cache_dtype: of cached keys and values.
        compile: maps a function of `(model, *arrays [R, *])` to a compiled one; it may shard R.

    Returns:
        The answers, `...` = B, or B and n_best. For lists, numpy arrays as long as the longest,
        before answers are cut at stop strings.

    Raises:
        TypeError: ids that are not integers; a model that generates no text; a strategy, a logit
            processor, a tokenizer or a random key that is none.
        ValueError: arguments that do not fit together; the message is one sentence.
    """
    if slots is not None and slots < 1:
        raise ValueError(f"slots must be at least 1, got {slots}")
    if isinstance(returning, str):
        raise TypeError(f"returning must be a list of names, such as [{returning!r}], got a string")
    program, prompts, rows = prepare(
        model,
        inputs,
        strategy=strategy,
        max_tokens=max_tokens,
        lengths=lengths,
        start=start,
        stop=stop,
        min_tokens=min_tokens,
        pad=pad,
        prefix=prefix,
        logit_processors=logit_processors,
        rng=rng,
        tokenizer=tokenizer,
        cache_dtype=cache_dtype,
    )
    observe = _attention if observe is None and returning else observe

    def limited(length: int, max_steps: object = max_steps) -> GenerationProgram:
        steps = max_steps(length) if callable(max_steps) else max_steps
        steps = max_tokens if steps is None else min(steps, max_tokens)
        options = replace(program.options, observe=observe, max_steps=steps)
        return replace(program, options=options, returning=tuple(returning))

    run = runner(model, compile)
    if prompts is None:
        output = generate_array(run, limited(rows["inputs"].shape[1]), rows, slots)
    else:
        sizes = bucket_lengths(prompts, buckets)
        passes = [(size, limited(size)) for size in sizes]
        if observe is not None:  # observed arrays are as wide as inputs and steps
            passes = []
        if not passes or passes[-1][1].options.max_steps < max_tokens:
            passes.append((sizes[-1], limited(sizes[-1], None)))
        passes = [
            (limit_bucket(model, size, prompts, one.options.max_steps), one) for size, one in passes
        ]
        output = generate_lists(run, passes, prompts, rows, slots)
    if tokenizer is None:
        return output
    answer_text = AnswerText(tokenizer, program.options.stopping, stop_strings(stop))
    is_sum = isinstance(strategy, TokenStrategy)
    return with_text(output, answer_text, is_sum=is_sum)


def _attention(output: Any) -> Any:  # noqa: ANN401 - of any model
    if not jax.tree.leaves(output.attention):
        raise ValueError(
            "returning needs names of results of attention, and the steps of this model return "
            "none of these: pass observe for other results, such as lambda output: "
            "output.hidden_states"
        )
    return output.attention

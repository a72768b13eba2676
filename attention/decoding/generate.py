"""Text generation with any model that has `prefill` and `step`.

Rows are decoded in slots: in slot r one row after the other, of arrays `[R, T, *]`.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from attention.decoding.output import GenerationOutput, Prefix
from attention.decoding.program import (
    GenerationProgram,
    GenerativeModel,
    Rows,
    Stop,
    Tokenizer,
    bucket_lengths,
    merge_slots,
    pad_lists,
    prepare,
    split_slots,
    stop_strings,
)
from attention.decoding.sampling import Greedy, LogitProcessor, Observe, Strategy, TokenStrategy
from attention.decoding.text import AnswerText, with_text
from attention.modules.numbers import check_count

ROWS_PER_SLOT = 1, 8, 64  # that programs are compiled for
MOST_SLOTS = 64  # by default

_attention = operator.attrgetter("attention")
Run = Callable[[GenerationProgram, Rows, int, int], GenerationOutput]
"""`(program, rows, slots, rows per slot) -> output [R, T, *]`."""


def generate(
    model: GenerativeModel,
    inputs: ArrayLike | Sequence[Sequence[int]] | Sequence[str],
    *,
    strategy: Strategy = Greedy(),  # noqa: B008 - frozen
    max_tokens: int,
    lengths: ArrayLike | None = None,
    start: ArrayLike | None = None,
    stop: Stop = (),
    min_tokens: int = 0,
    prefix: Prefix | Sequence[Sequence[int]] | Sequence[str] | None = None,
    logit_processors: Sequence[LogitProcessor] = (),
    rng: Array | None = None,
    returning: Sequence[str] = (),
    observe: Observe | None = None,
    tokenizer: Tokenizer | None = None,
    slots: int | None = None,
    buckets: Sequence[int] | None = None,
    compile: Callable[..., Any] = jax.jit,
) -> GenerationOutput:
    """Generate a continuation, or a translation, of each input.

    Arrays may be traced: `generate` then is a part of the caller's program. Otherwise one program
    is compiled for each shape, and used again by later calls with equal settings; functions among
    them, such as logit processors, are equal if they are the same object.

    Lists are padded to a few lengths (buckets), and inputs of similar length are decoded together.

    Where logit processors or the logits themselves exclude every token, a row has no answer: length
    0 and score -inf (in beam search, if this is so for all of its hypotheses).

    A string in `stop` ends the decoding of an answer at the ids that the tokenizer has for it.
    Other ids whose text contains it do not: the answer is cut when all answers are decoded. Either
    way the answer ends with the first token with which its text contains the string (`tokens`,
    `lengths`, `log_probs`, `observed`, and `scores` except those of beams), and `text` ends in
    front of the string.

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
        stop: an id, an array of ids, or a list of ids, of sequences of ids, or of strings with a
            tokenizer (see above), that end an answer.
        min_tokens: smallest number of tokens of an answer.
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
            (continuous batching). By default all rows of an array, and 64 at most of lists.
        buckets: lengths that lists are padded to; by default powers of 2 from 16.
        compile: maps a function of `(model, *arrays [R, *])` to a compiled one; it may shard R.

    Returns:
        The answers, `...` = B, or B and n_best. For lists, numpy arrays as long as the longest,
        before answers are cut at stop strings.

    Raises:
        TypeError: ids that are not integers; a model, a strategy or a random key that is none.
        ValueError: arguments that do not fit together; the message is one sentence.
    """
    check_count("slots", slots, at_least=1)
    if observe is None and "hidden_states" in returning:
        raise ValueError("hidden_states are no result of attention: pass observe= to return them")
    program, prompts, rows = prepare(
        model,
        inputs,
        strategy=strategy,
        max_tokens=max_tokens,
        lengths=lengths,
        start=start,
        stop=stop,
        min_tokens=min_tokens,
        prefix=prefix,
        logit_processors=logit_processors,
        rng=rng,
        returning=returning,
        observe=_attention if observe is None and returning else observe,
        tokenizer=tokenizer,
    )

    def run(program: GenerationProgram, rows: Rows, slots: int, per_slot: int) -> GenerationOutput:
        program = replace(program, names=tuple(rows))
        arrays = [_in_slots(array, slots, per_slot) for array in rows.values()]
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((model, arrays))):
            return program.generate(model, *arrays)
        return program.compiled("generate", compile)(model, *arrays)

    if prompts is None:
        number = len(rows["inputs"])
        slots = max(1, number if slots is None else min(slots, number))
        output = run(program, rows, slots, max(1, -(-number // slots)))
        # Outside of jit, each array would compile three programs.
        output = jax.jit(_first_rows, static_argnums=1)(output, number)
    else:
        sizes = bucket_lengths(model, prompts, buckets, max_tokens)
        output = _generate_lists(run, program, prompts, rows, sizes, slots)
    if tokenizer is None:
        return output
    answer_text = AnswerText(tokenizer, program.options.stopping, stop_strings(stop))
    return with_text(output, answer_text, is_sum=isinstance(strategy, TokenStrategy))


def _in_slots(array: ArrayLike, slots: int, per_slot: int) -> Array:
    """Return rows `[B, *]` as `[R, T, *]`; missing rows are 0, which are not active."""
    numpy = jnp if isinstance(array, jax.core.Tracer) else np
    array = numpy.asarray(array)
    padding = [(0, slots * per_slot - len(array)), *[(0, 0)] * (array.ndim - 1)]
    return split_slots(numpy.pad(array, padding), slots)


def _first_rows(output: GenerationOutput, number: int) -> GenerationOutput:
    """Return the first rows `[B, *]` of leaves `[R, T, *]`."""
    return jax.tree.map(lambda leaf: merge_slots(leaf)[:number], output)


def _generate_lists(
    run: Run,
    program: GenerationProgram,
    prompts: Sequence[Sequence[int]],
    rows: Rows,
    sizes: Sequence[int],
    slots: int | None,
) -> GenerationOutput:
    """Generate answers for lists of ids, of those of similar length together.

    The ids are padded to `sizes`, in rising order; `rows` are other arrays with a row for each.

    Steps cost less with shorter caches, and few translations are longer than half as many tokens
    again as their source. So in slots, an encoder-decoder model decodes no more at first, and the
    longer answers again with the inputs of the next size: 1,000 short ones take 0.9 times as long.
    """
    rows, finished, numbers = jax.device_get(rows), [], []
    options, stopping = program.options, program.options.stopping
    is_limited = slots is not None and "start" in rows and options.observe is None
    for length in sizes if prompts else sizes[-1:]:
        steps, known = stopping.max_tokens, {*numbers}
        if is_limited and length != sizes[-1]:
            steps = min(steps, max(3 * length // 2, stopping.min_tokens))
        limited = replace(program, options=replace(options, max_steps=steps))
        remaining = [n for n, ids in enumerate(prompts) if n not in known and len(ids) <= length]
        # The longest first, so that few slots are empty when the last rows are decoded.
        remaining.sort(key=lambda number: -len(prompts[number]))
        at_once = slots or min(MOST_SLOTS, 1 << max(0, len(remaining) - 1).bit_length())
        most, results = max(ROWS_PER_SLOT) * at_once, []
        # Without prompts, a chunk without rows has the shapes of answers.
        for begin in range(0, len(remaining) if prompts else 1, most):
            chunk = np.array(remaining[begin : begin + most], int)
            tokens, lengths = pad_lists([prompts[number] for number in chunk], length)
            given = {name: array[chunk] for name, array in rows.items()}
            given |= {"inputs": tokens, "lengths": lengths}
            per_slot = next(n for n in ROWS_PER_SLOT if n * at_once >= len(chunk))
            results.append((chunk, run(limited, given, at_once, per_slot)))
        for chunk, output in results:  # all chunks are dispatched before the first result is read
            output = _first_rows(jax.device_get(output), len(chunk))
            ended = output.lengths if output.lengths.ndim == 1 else output.lengths[:, 0]
            ended = (ended > 0) | (steps == stopping.max_tokens)
            finished.append(jax.tree.map(lambda leaf, ended=ended: leaf[ended], output))
            numbers += chunk[ended].tolist()
    longest = max(int(output.lengths.max(initial=0)) for output in finished)
    finished = [_resized(output, longest) for output in finished]
    order = np.argsort(numbers)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[order], *finished)


def _resized(output: GenerationOutput, steps: int) -> GenerationOutput:
    """Return answers of so many steps."""
    axis = output.lengths.ndim

    def resize(leaf: np.ndarray) -> np.ndarray:
        leaf = leaf[(slice(None),) * axis + (slice(steps),)]
        widths = [(0, 0)] * leaf.ndim
        widths[axis] = (0, steps - leaf.shape[axis])
        return np.pad(leaf, widths)

    parts = {name: getattr(output, name) for name in ("tokens", "log_probs", "observed")}
    return output._replace(**jax.tree.map(resize, parts))

"""Text generation with any model that has `prefill` and `step`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from attention.decoding.batching import (
    bucket_lengths,
    generate_array,
    generate_lists,
    limit_bucket,
    runner,
)
from attention.decoding.inputs import prepare
from attention.decoding.output import GenerationOutput
from attention.decoding.processors import LogitProcessor
from attention.decoding.program import GenerationProgram, GenerativeModel
from attention.decoding.stopping import Prefix
from attention.decoding.strategy import Greedy, Observe, Strategy, TokenStrategy
from attention.decoding.text import AnswerText, Tokenizer, stop_strings, with_text


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

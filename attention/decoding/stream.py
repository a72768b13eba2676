"""Streaming: yield each token when it is chosen."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from attention.decoding.batching import bucket_lengths, padded, with_least_padding
from attention.decoding.inputs import (
    Tokenizer,
    array_rows,
    check_no_lengths,
    check_not_empty,
    encode,
    encode_stop,
    is_array,
    without_stop,
)
from attention.decoding.loop import Decoder, Progress, make_decoder, make_request
from attention.decoding.processors import LogitProcessor
from attention.decoding.program import GenerativeModel, Program, Rows, compiled, unstack
from attention.decoding.stopping import Prefix, StoppingCriteria
from attention.decoding.strategy import Greedy, Strategy

INCOMPLETE = "\ufffd"  # at the end of a text: bytes of a character that is not complete


def stream(
    model: GenerativeModel,
    inputs: ArrayLike | Sequence[Any] | str,
    *,
    strategy: Strategy = Greedy(),  # noqa: B008 - frozen
    max_tokens: int,
    lengths: ArrayLike | None = None,
    start: ArrayLike | None = None,
    stop: int | str | Sequence[int | str | Sequence[int]] = (),
    min_tokens: int = 0,
    pad: int = 0,
    prefix: Prefix | None = None,
    logit_processors: Sequence[LogitProcessor] = (),
    rng: Array | None = None,
    tokenizer: Tokenizer | None = None,
    buckets: Sequence[int] | None = None,
    cache_dtype: DTypeLike | None = None,
    compile: Callable[..., Any] = jax.jit,
) -> Iterator[Any]:
    """Yield the tokens that `generate` returns, one step at a time.

    The loop runs in Python, so each token costs a call of a compiled function, and `generate` does
    not pay for that. The arguments are those of `generate`, except:

    Args:
        model: as in `generate`.
        inputs: as in `generate`; or one prompt, a string or a list of ids.
        strategy: `Greedy()`, `Sample(...)` or another that follows one hypothesis per row.
        max_tokens: as in `generate`, and so are all others.
        lengths: of an array.
        start: of encoder-decoder models.
        stop: ends an answer; a stop sequence is yielded as ids, but not as text.
        min_tokens: smallest number of tokens.
        pad: yielded for rows that have ended.
        prefix: its tokens are yielded too.
        logit_processors: applied in order.
        rng: a random key, or one for each row.
        tokenizer: for pieces of text instead of ids.
        buckets: lengths that lists are padded to.
        cache_dtype: of cached keys and values.
        compile: compiles the prefill and the step, functions of pytrees.

    Returns:
        An iterator over int32 `[B]`, or an id for one prompt; with a tokenizer over a list of B
        pieces of text, or a piece for one prompt.

    Raises:
        TypeError, ValueError: as `generate`, before the first token; a strategy with hypotheses.
    """
    if strategy.num_beams is not None:
        raise ValueError("stream needs a strategy that follows one hypothesis per row, not beams")
    stopping = StoppingCriteria(max_tokens, encode_stop(stop, tokenizer), min_tokens, pad)
    single = isinstance(inputs, str) or (
        not is_array(inputs) and len(inputs) > 0 and isinstance(inputs[0], Integral)
    )
    prompts = None
    if not is_array(inputs):
        check_no_lengths(lengths)
        prompts = encode([inputs] if single else inputs, tokenizer, "inputs")
        check_not_empty(prompts)
        longest = max(map(len, prompts), default=0)
        sizes = bucket_lengths(longest, buckets)
        inputs, lengths = padded(prompts, next(size for size in sizes if size >= longest))
    rows = array_rows(model, inputs, lengths, start, prefix, rng)
    program = Program(
        strategy=strategy,
        stopping=stopping,
        logit_processors=tuple(logit_processors),
        rng_impl=None if rng is None else jax.random.key_impl(rng),
        cache_dtype=cache_dtype,
    )
    begin = partial(compiled(_Begin(program), compile), model)
    begun = begin(rows) if prompts is None else with_least_padding(begin, rows)
    tokens = _tokens(compiled(_Advance(program), compile), *begun)
    if tokenizer is None:
        return (int(one[0]) for one in tokens) if single else tokens
    pieces = _pieces(tokens, tokenizer, stopping)
    return (one[0] for one in pieces) if single else pieces


def _decoder(program: Program, model: GenerativeModel) -> Decoder:
    step, options = program.stepping(model), (program.logit_processors, None, None)
    return make_decoder(step, program.strategy, program.stopping, *options)


@dataclass(frozen=True)
class _Begin:
    """The prefill of a program."""

    program: Program

    def __call__(self, model: GenerativeModel, rows: Rows) -> tuple[GenerativeModel, Progress]:
        """Return the model with separate layers, and the progress before the first token."""
        program = self.program
        state, start = program.prefill(model, rows)
        given = program.request(model, rows)
        options = (given.get("prefix"), given["history"], given.get("rng"))
        request = make_request(start, program.stopping, *options)
        model = unstack(model)
        decoder = _decoder(program, model)
        like = jax.eval_shape(decoder.first_prediction, state, start)
        search = program.strategy.begin(decoder.settings, request, like)
        index = jnp.zeros(start.shape, jnp.int32)
        return model, Progress(index, start.astype(jnp.int32), state, search, request)


@dataclass(frozen=True)
class _Advance:
    """A step of a program."""

    program: Program

    def __call__(
        self, model: GenerativeModel, progress: Progress
    ) -> tuple[Progress, tuple[Array, Array]]:
        """Return the progress, and the chosen tokens with whether any row needs more."""
        decoder = _decoder(self.program, model)
        progress = decoder.advance(decoder.predict, progress)
        return progress, (progress.last, decoder.unfinished(progress).any())


def _tokens(
    advance: Callable[..., Any], model: GenerativeModel, progress: Progress
) -> Iterator[Array]:
    for _ in itertools.count():
        progress, (tokens, more) = advance(model, progress)
        yield jax.device_get(tokens)
        if not more:
            return


def _pieces(
    tokens: Iterator[Array], tokenizer: Tokenizer, stopping: StoppingCriteria
) -> Iterator[list[str]]:
    """Yield what each token adds to the text of its row.

    Tokens are held back while they may belong to a stop sequence or to an incomplete character.
    """
    rows: list[tuple[list[int], str]] | None = None
    for chosen in tokens:
        rows = [([], "") for _ in chosen] if rows is None else rows
        pieces = []
        for row, token in enumerate(chosen.tolist()):
            ids, before = rows[row]
            stopped = len(without_stop(ids, stopping)) < len(ids)
            ids = ids if stopped else [*ids, token]
            kept = without_stop(ids, stopping)
            last = stopped or len(kept) < len(ids) or len(ids) == stopping.max_tokens
            text = tokenizer.decode(
                kept if last else kept[: len(kept) - _begun_stop(kept, stopping)]
            )
            if text.endswith(INCOMPLETE) and not last:
                text = before
            rows[row] = ids, text
            pieces.append(text[len(before) :])
        yield pieces


def _begun_stop(ids: list[int], stopping: StoppingCriteria) -> int:
    """Return how many of the last ids may begin a stop sequence."""
    begun = [
        length
        for stop in stopping.stop
        for length in range(1, len(stop))
        if tuple(ids[-length:]) == stop[:length]
    ]
    return max(begun, default=0)

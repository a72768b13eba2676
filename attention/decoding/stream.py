"""Streaming: yield each token when it is chosen."""

from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from typing import Any

import jax
from jax import Array
from jax.typing import ArrayLike

from attention.decoding.batching import bucket_lengths, limit_bucket, pad_lists
from attention.decoding.inputs import Tokenizer, array_rows, is_array, prepare, without_stop
from attention.decoding.loop import LoopState
from attention.decoding.program import GenerativeModel, compiled
from attention.decoding.stopping import StoppingCriteria

INCOMPLETE = "\ufffd"  # at the end of a text: bytes of a character that is not complete


def stream(
    model: GenerativeModel,
    inputs: ArrayLike | Sequence[Any] | str,
    *,
    max_tokens: int,
    tokenizer: Tokenizer | None = None,
    buckets: Sequence[int] | None = None,
    compile: Callable[..., Any] = jax.jit,
    **options: Any,  # noqa: ANN401 - of several types
) -> Iterator[Any]:
    """Yield the tokens that `generate` returns, one step at a time.

    The loop runs in Python, so each token costs a call of a compiled function, and `generate` does
    not pay for that. The arguments are those of `generate` that `prepare` takes, with these
    differences: `inputs` may be one prompt, a string or a list of ids; `strategy` follows one
    hypothesis per row; `pad` is yielded for rows that have ended or have no possible token; text
    does not contain stop sequences, ids do; `compile` maps functions of pytrees.

    Returns:
        An iterator over int32 `[B]`, or an id for one prompt; with a tokenizer over a list of B
        pieces of text, or a piece for one prompt.

    Raises:
        TypeError, ValueError: as `generate`, before the first token; a strategy with hypotheses.
    """
    single = isinstance(inputs, str) or (
        not is_array(inputs) and len(inputs) > 0 and isinstance(inputs[0], Integral)
    )
    options |= {"max_tokens": max_tokens, "tokenizer": tokenizer}
    program, prompts, rows = prepare(model, [inputs] if single else inputs, **options)
    stopping = program.options.stopping
    if program.options.strategy.num_beams is not None:
        raise ValueError("stream needs a strategy that follows one hypothesis per row, not beams")
    if prompts is not None:
        longest = max(map(len, prompts), default=0)
        size = next(size for size in bucket_lengths(prompts, buckets) if size >= longest)
        padded = pad_lists(prompts, limit_bucket(model, size, prompts, max_tokens))
        rows |= array_rows(model, *padded)
    begun = compiled(program, "begin", compile)(model, rows)
    tokens = _tokens(compiled(program, "advance", compile), *begun)
    if tokenizer is None:
        return (int(one[0]) for one in tokens) if single else tokens
    pieces = _pieces(tokens, tokenizer, stopping)
    return (one[0] for one in pieces) if single else pieces


def _tokens(
    advance: Callable[..., Any], model: GenerativeModel, carry: LoopState
) -> Iterator[Array]:
    more = True
    while more:
        carry, (tokens, more) = advance(model, carry)
        yield jax.device_get(tokens)


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

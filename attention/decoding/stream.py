"""Streaming: yield each token when it is chosen."""

from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from typing import Any

import jax
from jax import Array
from jax.typing import ArrayLike

from attention.decoding.batching import bucket_lengths, limit_bucket, pad_lists
from attention.decoding.inputs import array_rows, is_array, prepare
from attention.decoding.loop import LoopState
from attention.decoding.program import GenerativeModel, compiled
from attention.decoding.text import AnswerText, Tokenizer, stop_strings

INCOMPLETE = "\ufffd"  # at the end of a text: bytes of a character that is not complete


def stream(
    model: GenerativeModel,
    inputs: ArrayLike | Sequence[Any] | str,
    *,
    max_tokens: int,
    stop: int | str | Sequence[int | str | Sequence[int]] = (),
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
    does not contain stop sequences and strings, ids do; `compile` maps functions of pytrees.

    Returns:
        An iterator over int32 `[B]`, or an id for one prompt; with a tokenizer over a list of B
        pieces of text, or a piece for one prompt.

    Raises:
        TypeError, ValueError: as `generate`, before the first token; a strategy with hypotheses.
    """
    single = isinstance(inputs, str) or (
        not is_array(inputs) and len(inputs) > 0 and isinstance(inputs[0], Integral)
    )
    options |= {"max_tokens": max_tokens, "stop": stop, "tokenizer": tokenizer}
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
    steps = _steps(compiled(program, "advance", compile), *begun)
    if tokenizer is None:
        return (int(tokens[0]) if single else tokens for tokens, _ in steps)
    pieces = _pieces(steps, AnswerText(tokenizer, stopping, stop_strings(stop)))
    return (one[0] for one in pieces) if single else pieces


def _steps(
    advance: Callable[..., Any], model: GenerativeModel, carry: LoopState
) -> Iterator[tuple[Array, Array]]:
    """Yield the chosen tokens, and the lengths of the answers."""
    more = True
    while more:
        carry, (*step, more) = advance(model, carry)
        yield jax.device_get(step)


def _pieces(steps: Iterator[tuple[Array, Array]], answer_text: AnswerText) -> Iterator[list[str]]:
    """Yield what each token adds to the text of its row, until all rows have ended.

    Text is held back while it may belong to a stop sequence, a stop string or an incomplete
    character.
    """
    rows: list[tuple[list[int], str, bool]] = []  # ids, text, and whether it has ended
    for tokens, lengths in steps:
        rows, pieces = rows or [([], "", False)] * len(tokens), []
        for row, (token, length) in enumerate(zip(tokens.tolist(), lengths.tolist(), strict=True)):
            ids, before, ended = rows[row]
            text, ended = before, ended or length <= len(ids)  # no token was possible
            if not ended:
                ids = [*ids, token]
                ended = answer_text.ends(ids)
                text = answer_text(ids) if ended else _certain(ids, before, answer_text)
            rows[row] = ids, text, ended
            pieces.append(text[len(before) :])
        yield pieces
        if all(ended for *_, ended in rows):
            return


def _certain(ids: list[int], before: str, answer_text: AnswerText) -> str:
    """Return the text that remains, whatever the next tokens are."""
    held = _begun(tuple(ids), answer_text.stopping.stop)
    text = answer_text.tokenizer.decode(ids[: len(ids) - held])
    text = text[: len(text) - _begun(text, answer_text.strings)]
    return before if text.endswith(INCOMPLETE) or len(text) < len(before) else text


def _begun(given: Sequence[Any], stops: Sequence[Sequence[Any]]) -> int:
    """Return how many of the last ids, or letters, may begin a stop sequence, or string."""
    begun = [
        length
        for stop in stops
        for length in range(1, len(stop))
        if given[-length:] == stop[:length]
    ]
    return max(begun, default=0)

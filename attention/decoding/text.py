"""Answers as text: stop strings, and streams of pieces."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from attention.decoding.inputs import (
    Tokenizer,
    array_rows,
    bucket_lengths,
    is_array,
    limit_bucket,
    pad_lists,
    prepare,
    stop_strings,
)
from attention.decoding.loop import LoopState
from attention.decoding.output import GenerationOutput
from attention.decoding.program import GenerativeModel, compiled
from attention.decoding.stopping import StoppingCriteria


@dataclass(frozen=True)
class AnswerText:
    """The text of answers.

    Attributes:
        tokenizer: decodes ids.
        stopping: when an answer ends.
        strings: of `stop`. An occurrence that is complete before `min_tokens` does not count.
    """

    tokenizer: Tokenizer
    stopping: StoppingCriteria
    strings: tuple[str, ...] = ()

    def __call__(self, ids: list[int]) -> str:
        """Return the text up to the first stop string, or without the stop sequence at the end."""
        text, place = self._find(ids)
        if place is not None:
            return text[:place]
        kept = self.without_stop(ids)
        return text if len(kept) == len(ids) else self.tokenizer.decode(kept)

    def without_stop(self, ids: list[int]) -> list[int]:
        """Return ids without the stop sequence at their end, if there is one."""
        tails = {tuple(ids[-length:]) for length in {len(stop) for stop in self.stopping.stop}}
        found = [len(tail) for tail in tails if tail in self.stopping.stop]
        return ids[: len(ids) - max(found, default=0)]

    def ends(self, ids: list[int]) -> bool:
        """Return whether an answer ends with these tokens."""
        is_full = len(ids) == self.stopping.max_tokens
        return is_full or self.has_string(ids) or len(self.without_stop(ids)) < len(ids)

    def has_string(self, ids: list[int]) -> bool:
        """Return whether the text contains a stop string."""
        return self._find(ids)[1] is not None

    def length(self, ids: list[int]) -> int:
        """Return the number of tokens up to the first with which the text has a stop string."""
        if not self.has_string(ids):
            return len(ids)
        return next(n for n in range(1, len(ids) + 1) if self.has_string(ids[:n]))

    def _find(self, ids: list[int]) -> tuple[str, int | None]:
        """Return the text, and where its first stop string begins."""
        text, early = self.tokenizer.decode(ids), ids[: max(0, self.stopping.min_tokens - 1)]
        start = len(self.tokenizer.decode(early)) if early and self.strings else 0
        places = [text.find(each, max(0, start + 1 - len(each))) for each in self.strings]
        return text, min((place for place in places if place >= 0), default=None)


def with_text(
    output: GenerationOutput, answer_text: AnswerText, *, is_sum: bool
) -> GenerationOutput:
    """Return answers with their text, cut at stop strings.

    Args:
        output: `...` = B, or B and n_best.
        answer_text: returns the text of one answer.
        is_sum: whether `scores` are the sum of `log_probs`, so that those of answers that are cut
            are computed again.
    """
    host = jax.device_get(output)
    shape, ended = host.lengths.shape, host.lengths
    rows = zip(host.tokens.reshape(ended.size, host.tokens.shape[-1]), ended.ravel(), strict=True)
    answers = [ids[:length].tolist() for ids, length in rows]
    text = [answer_text(ids) for ids in answers]
    if len(shape) > 1:
        text = [text[at : at + shape[1]] for at in range(0, len(text), shape[1])]
    if answer_text.strings:
        lengths = [answer_text.length(ids) for ids in answers]
        output = _cut(host, np.array(lengths, np.int32).reshape(shape), answer_text.stopping.pad)
        if is_sum:
            sums = output.log_probs.sum(-1, dtype=output.scores.dtype)
            scores = np.where(output.lengths < ended, sums, output.scores)
            output = output._replace(scores=scores)
    return output._replace(text=text)


def _cut(output: GenerationOutput, lengths: np.ndarray, pad: int) -> GenerationOutput:
    """Replace the tokens behind so many of each answer by padding."""
    kept = np.arange(output.tokens.shape[-1]) < lengths[..., None]

    def keep(leaf: np.ndarray) -> Any:  # noqa: ANN401 - of the type of the leaf
        mask = kept.reshape(kept.shape + (1,) * (leaf.ndim - kept.ndim))
        return np.where(mask, leaf, np.zeros((), leaf.dtype))

    return output._replace(
        tokens=np.where(kept, output.tokens, np.int32(pad)),
        lengths=lengths,
        log_probs=keep(output.log_probs),
        observed=jax.tree.map(keep, output.observed),
    )


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

"""Text of answers, cut in front of stop sequences and stop strings; streams of its pieces."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from attention.decoding.output import GenerationOutput, StoppingCriteria
from attention.decoding.program import (
    GenerativeModel,
    Tokenizer,
    array_rows,
    bucket_lengths,
    pad_lists,
    prepare,
    stop_strings,
)

INCOMPLETE = "\ufffd"  # at the end of a text: bytes of a character that is not complete


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
        kept = self._without_stop(ids)
        return text if len(kept) == len(ids) else self.tokenizer.decode(kept)

    def ends(self, ids: list[int]) -> bool:
        """Return whether an answer ends with these tokens."""
        is_cut = self._find(ids)[1] is not None or self._without_stop(ids) != ids
        return is_cut or len(ids) == self.stopping.max_tokens

    def length(self, ids: list[int]) -> int:
        """Return the number of tokens up to the first with which the text has a stop string."""
        if self._find(ids)[1] is None:
            return len(ids)
        return next(n for n in range(1, len(ids) + 1) if self._find(ids[:n])[1] is not None)

    def certain(self, ids: list[int], before: str) -> str:
        """Return the text that remains, whatever the next tokens are; `before` at least."""
        text = self.tokenizer.decode(ids[: len(ids) - _begun(tuple(ids), self.stopping.stop)])
        text = text[: len(text) - _begun(text, self.strings)]
        return before if text.endswith(INCOMPLETE) or len(text) < len(before) else text

    def _without_stop(self, ids: list[int]) -> list[int]:
        """Return ids without the stop sequence at their end, if there is one."""
        lengths = [len(stop) for stop in self.stopping.stop if tuple(ids[-len(stop) :]) == stop]
        return ids[: len(ids) - max(lengths, default=0)]

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

    If `scores` are the sum of `log_probs` (`is_sum`), those of cut answers are computed again.
    """
    output = jax.device_get(output)
    shape, steps = output.lengths.shape, output.tokens.shape[-1]
    tokens = output.tokens.reshape(output.lengths.size, steps)
    rows = zip(tokens, output.lengths.ravel(), strict=True)
    answers = [ids[:length].tolist() for ids, length in rows]
    text = [answer_text(ids) for ids in answers]
    if len(shape) > 1:
        text = [text[at : at + shape[1]] for at in range(0, len(text), shape[1])]
    if not answer_text.strings:
        return output._replace(text=text)
    lengths = np.array([answer_text.length(ids) for ids in answers], np.int32).reshape(shape)
    kept = np.arange(steps) < lengths[..., None]

    def keep(leaf: np.ndarray) -> Any:  # noqa: ANN401 - of the type of the leaf
        mask = kept.reshape(kept.shape + (1,) * (leaf.ndim - kept.ndim))
        return np.where(mask, leaf, np.zeros((), leaf.dtype))

    log_probs, scores = keep(output.log_probs), output.scores
    if is_sum:
        sums = log_probs.sum(-1, dtype=scores.dtype)
        scores = np.where(lengths < output.lengths, sums, scores)
    tokens, observed = keep(output.tokens), jax.tree.map(keep, output.observed)
    return GenerationOutput(tokens, lengths, scores, log_probs, observed, text)


def stream(
    model: GenerativeModel,
    inputs: ArrayLike | Sequence[Any] | str,
    *,
    buckets: Sequence[int] | None = None,
    compile: Callable[..., Any] = jax.jit,
    **options: Any,  # noqa: ANN401 - of several types
) -> Iterator[Any]:
    """Yield the tokens that `generate` returns, one step at a time.

    The loop runs in Python, so each token costs a call of a compiled function, and `generate` does
    not pay for that. The arguments are those of `generate`, except for `slots`, with these
    differences: `inputs` may be one prompt, a string or a list of ids; `strategy` follows one
    hypothesis per row; 0 is yielded for rows that have ended or have no possible token; text does
    not contain stop sequences and strings, ids do; `compile` maps functions of pytrees.

    Returns:
        An iterator over int32 `[B]`, or an id for one prompt; with a tokenizer over a list of B
        pieces of text, or a piece for one prompt. Errors are raised before the first token.
    """
    single = isinstance(inputs, str) or (
        not hasattr(inputs, "shape") and len(inputs) > 0 and isinstance(inputs[0], Integral)
    )
    program, prompts, rows = prepare(model, [inputs] if single else inputs, **options)
    stopping, tokenizer = program.options.stopping, options.get("tokenizer")
    if program.options.strategy.num_beams is not None:
        raise ValueError("stream needs a strategy that follows one hypothesis per row, not beams")
    if prompts is not None:
        longest = max(map(len, prompts), default=0)
        sizes = bucket_lengths(model, prompts, buckets, stopping.max_tokens)
        rows |= array_rows(*pad_lists(prompts, next(size for size in sizes if size >= longest)))
    begun = program.compiled("begin", compile)(model, rows)
    steps = _steps(program.compiled("advance", compile), *begun)
    if tokenizer is None:
        return (int(tokens[0]) if single else tokens for tokens, _ in steps)
    pieces = _pieces(steps, AnswerText(tokenizer, stopping, stop_strings(options.get("stop", ()))))
    return (one[0] for one in pieces) if single else pieces


def _steps(
    advance: Callable[..., Any], model: GenerativeModel, carry: object
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
                text = answer_text(ids) if ended else answer_text.certain(ids, before)
            rows[row] = ids, text, ended
            pieces.append(text[len(before) :])
        yield pieces
        if all(ended for *_, ended in rows):
            return


def _begun(given: Sequence[Any], stops: Sequence[Sequence[Any]]) -> int:
    """Return how many of the last ids, or letters, may begin a stop sequence, or string."""
    lengths = ((length, stop) for stop in stops for length in range(1, len(stop)))
    return max((n for n, stop in lengths if given[-n:] == stop[:n]), default=0)

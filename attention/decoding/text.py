"""Answers as text, which ends in front of stop sequences and stop strings."""

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

import jax
import numpy as np

from attention.decoding.output import GenerationOutput
from attention.decoding.stopping import StoppingCriteria


class Tokenizer(Protocol):
    """Converts text to ids and back.

    A tokenizer that adds special tokens to a text, such as one for its beginning, needs a keyword
    argument of `encode` that turns this off: `special_tokens` or, as in transformers,
    `add_special_tokens`. Stop sequences and prefixes are encoded with False, inputs by default.
    """

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids."""


def stop_strings(stop: int | str | Sequence[int | str | Sequence[int]]) -> tuple[str, ...]:
    """Return the strings among the values of `stop`."""
    listed = [stop] if isinstance(stop, Integral | str) else stop
    return tuple(part for part in listed if isinstance(part, str))


def tokens_with(tokenizer: Tokenizer, string: str, before: int, vocab_size: int) -> tuple[int, ...]:
    """Return the ids in [0, V) of the tokens whose text contains a string.

    Args:
        tokenizer: decodes each token; its answers are kept for later calls if it is hashable.
        string: to find.
        before: id of a token that is decoded with each of them, since the first token of a text may
            have another text than later ones.
        vocab_size: V.
    """
    find = _tokens_with if isinstance(tokenizer, Hashable) else _tokens_with.__wrapped__
    return find(tokenizer, string, before, vocab_size)


@functools.lru_cache(maxsize=64)
def _tokens_with(
    tokenizer: Tokenizer, string: str, before: int, vocab_size: int
) -> tuple[int, ...]:
    start = len(tokenizer.decode([before]))
    return tuple(i for i in range(vocab_size) if string in tokenizer.decode([before, i])[start:])


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

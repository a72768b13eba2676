"""Inputs of `generate`, checked and as arrays by name; answers as text."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.decoding.output import GenerationOutput
from attention.decoding.program import GenerativeModel, Rows
from attention.decoding.stopping import Prefix, StoppingCriteria
from attention.primitives.cache import check_lengths


class Tokenizer(Protocol):
    """Converts text to ids and back."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids."""


def is_array(inputs: object) -> bool:
    """Return whether inputs are an array, not a list."""
    return hasattr(inputs, "shape")


def encode(inputs: Sequence[Any], tokenizer: Tokenizer | None, name: str) -> list[list[int]]:
    """Return the ids of texts, or of lists of ids.

    Raises:
        ValueError: text without a tokenizer.
    """
    if isinstance(inputs, str):
        raise ValueError(f"{name} is one string: pass a list of strings")
    if tokenizer is None and any(isinstance(part, str) for part in inputs):
        raise ValueError(f"{name} has strings: pass a tokenizer with encode and decode")
    return [
        list(tokenizer.encode(part)) if isinstance(part, str) else [int(number) for number in part]
        for part in inputs
    ]


def encode_stop(stop: object, tokenizer: Tokenizer | None) -> object:
    """Return stop sequences with strings as ids.

    Raises:
        ValueError: a string without a tokenizer.
    """
    if isinstance(stop, str):
        return tuple(map(tuple, encode([stop], tokenizer, "stop")))
    if isinstance(stop, Integral):
        return stop
    return tuple(
        encode([part], tokenizer, "stop")[0] if isinstance(part, str) else part for part in stop
    )


def check_not_empty(prompts: Sequence[Sequence[int]]) -> None:
    """Check that each input has a token.

    Raises:
        ValueError: an input without tokens.
    """
    for number, ids in enumerate(prompts):
        if not ids:
            raise ValueError(f"inputs[{number}] has no tokens; each input needs at least 1")


def check_no_lengths(lengths: object) -> None:
    """Check that no lengths are given beside a list.

    Raises:
        ValueError: they are.
    """
    if lengths is not None:
        raise ValueError("lengths are for arrays: a list has the length of each of its inputs")


def array_rows(
    model: GenerativeModel,
    inputs: ArrayLike,
    lengths: ArrayLike | None,
    start: ArrayLike | None,
    prefix: Prefix | None,
    rng: Array | None,
) -> Rows:
    """Return the rows of a batch of ids `[B, P]`.

    Raises:
        TypeError: ids that are not integers.
        ValueError: shapes that do not fit, an input of length 0, and as `start_tokens`.
    """
    inputs = jnp.asarray(inputs)
    if inputs.ndim != 2 or not jnp.issubdtype(inputs.dtype, jnp.integer):
        raise TypeError(f"inputs need integer ids [B, P], got {inputs.dtype} {inputs.shape}")
    number, width = inputs.shape
    if lengths is None:
        lengths = jnp.full(number, width, jnp.int32)
    check_lengths(lengths, width, least=1)
    if jnp.shape(lengths) != (number,):
        raise ValueError(f"lengths need shape ({number},), got {jnp.shape(lengths)}")
    rows = {
        "active": jnp.ones(number, bool),
        "inputs": inputs.astype(jnp.int32),
        "lengths": jnp.asarray(lengths).astype(jnp.int32),
    }
    rows |= start_tokens(model, start, number)
    if prefix is not None:
        rows |= {"prefix": prefix.tokens, "prefix_lengths": prefix.lengths}
    return rows | random_keys(rng, number)


def start_tokens(model: GenerativeModel, start: ArrayLike | None, number: int) -> Rows:
    """Return the start token of each row, of encoder-decoder models.

    Raises:
        ValueError: no start token for an encoder-decoder model, or one for a decoder-only model.
    """
    if model.is_prompted:
        if start is not None:
            raise ValueError("start is for encoder-decoder models; this one continues its inputs")
        return {}
    if start is None:
        raise ValueError("an encoder-decoder model needs start, the token that answers begin with")
    start = jnp.asarray(start)
    return {"start": jnp.broadcast_to(start.astype(jnp.int32), (number,))}


def random_keys(rng: Array | None, number: int) -> Rows:
    """Return the data of a random key for each row, which depends on its number alone.

    Args:
        rng: a random key, or one for each row, `[B]`.
        number: B.

    Raises:
        ValueError: keys for another number of rows.
    """
    if rng is None:
        return {}
    if rng.ndim == 0:
        rng = jax.vmap(jax.random.fold_in, (None, 0))(rng, jnp.arange(number, dtype=jnp.uint32))
    if rng.shape != (number,):
        raise ValueError(f"rng needs one key, or one for each of {number} rows, got {rng.shape}")
    return {"rng": jax.random.key_data(rng)}


def texts(output: GenerationOutput, tokenizer: Tokenizer, stopping: StoppingCriteria) -> list[Any]:
    """Return the text of each answer of a batch, without its stop sequence."""

    def text(tokens: Array, length: Array) -> object:
        if tokens.ndim > 1:
            return [text(*one) for one in zip(tokens, length, strict=True)]
        return tokenizer.decode(without_stop(tokens[: int(length)].tolist(), stopping))

    return [text(*one) for one in zip(output.tokens, output.lengths, strict=True)]


def without_stop(ids: list[int], stopping: StoppingCriteria) -> list[int]:
    """Return ids without the stop sequence at their end, if there is one."""
    found = [len(stop) for stop in stopping.stop if tuple(ids[-len(stop) :]) == stop]
    return ids[: len(ids) - max(found, default=0)]

"""Inputs of `generate`, checked and as arrays by name."""

import functools
import inspect
import operator
from collections.abc import Hashable, Iterable, Sequence
from numbers import Integral
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from attention.decoding.program import GenerationProgram, GenerativeModel, Rows
from attention.decoding.sampling import DecodingOptions, Greedy, LogitProcessor, Strategy
from attention.decoding.stopping import Prefix, StoppingCriteria, check_prefix
from attention.primitives.cache import check_lengths

SHORTEST = 16  # tokens: shorter inputs are padded rather than compiled for


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


def is_array(inputs: object) -> bool:
    """Return whether inputs are an array, not a list."""
    return hasattr(inputs, "shape")


def encode(
    inputs: Sequence[Any], tokenizer: Tokenizer | None, name: str, *, special_tokens: bool = True
) -> list[list[int]]:
    """Return the ids of texts, or of lists of ids.

    Args:
        inputs: texts, or lists of ids.
        tokenizer: for texts.
        name: of the inputs, in errors.
        special_tokens: whether the tokenizer may add special tokens to texts.

    Raises:
        TypeError: ids that are not integers.
        ValueError: text without a tokenizer.
    """
    if isinstance(inputs, str):
        raise ValueError(f"{name} is one string: pass a list of strings")
    if tokenizer is None and any(isinstance(part, str) for part in inputs):
        raise ValueError(f"{name} has strings: pass a tokenizer with encode and decode")
    options = {} if special_tokens else _without_special_tokens(tokenizer)
    try:
        listed = [
            tokenizer.encode(part, **options) if isinstance(part, str) else part for part in inputs
        ]
        return [[*map(operator.index, ids)] for ids in listed]
    except TypeError as error:
        raise TypeError(f"{name} needs lists of integer ids: {error}") from error


def _without_special_tokens(tokenizer: Tokenizer | None) -> dict[str, bool]:
    """Return the option of `tokenizer.encode` that turns special tokens off, if it has one."""
    if tokenizer is None:
        return {}
    known = inspect.signature(tokenizer.encode).parameters
    return {name: False for name in ("special_tokens", "add_special_tokens") if name in known}


def prepare(
    model: GenerativeModel,
    inputs: ArrayLike | Sequence[Any],
    *,
    max_tokens: int,
    strategy: Strategy = Greedy(),  # noqa: B008 - frozen
    lengths: ArrayLike | None = None,
    start: ArrayLike | None = None,
    stop: int | str | Sequence[int | str | Sequence[int]] = (),
    min_tokens: int = 0,
    pad: int = 0,
    prefix: Prefix | Sequence[Any] | None = None,
    logit_processors: Sequence[LogitProcessor] = (),
    rng: Array | None = None,
    tokenizer: Tokenizer | None = None,
    cache_dtype: DTypeLike | None = None,
) -> tuple[GenerationProgram, list[list[int]] | None, Rows]:
    """Check the arguments that `generate` and `stream` have in common.

    Returns:
        The program; the ids of each input, None for an array; and arrays with a row for each input,
        those of an array of inputs among them.
    """
    check_model(model)
    if tokenizer is not None and not (
        hasattr(tokenizer, "encode") and hasattr(tokenizer, "decode")
    ):
        name = type(tokenizer).__name__
        raise TypeError(f"a tokenizer needs encode and decode, got {name}")
    stopping = StoppingCriteria(max_tokens, encode_stop(model, stop, tokenizer), min_tokens, pad)
    options = DecodingOptions(strategy, stopping, logit_processors)
    if is_array(inputs):
        prompts, rows = None, array_rows(model, inputs, lengths)
        number = len(rows["active"])
    else:
        prompts, rows = encode_prompts(model, inputs, lengths, tokenizer), {}
        number = len(prompts)
    rows |= other_rows(model, number, start, prefix, rng, tokenizer, max_tokens)
    rng_impl = None if rng is None else jax.random.key_impl(rng)
    return GenerationProgram(options, rng_impl, cache_dtype), prompts, rows


def check_model(model: object) -> None:
    """Raise a TypeError for a model that generates no text."""
    if not (hasattr(model, "prefill") and hasattr(model, "step")):
        name = type(model).__name__
        raise TypeError(f"text generation needs a model with prefill and step, got {name}")


def check_vocabulary(
    name: str, rows: Iterable[int | Sequence[int]], vocab_size: int | None
) -> None:
    """Raise a ValueError for an id outside [0, V), with its row; V may be unknown."""
    for row, ids in enumerate(rows if vocab_size is not None else ()):
        for token in [ids] if isinstance(ids, Integral) else ids:
            if not 0 <= token < vocab_size:
                raise ValueError(
                    f"{name}[{row}] has token {token}, and the vocabulary has {vocab_size} tokens"
                )


def _input_vocab_size(model: GenerativeModel) -> int | None:
    return getattr(model, "vocab_size" if model.is_prompted else "input_vocab_size", None)


def _known(*arrays: Array) -> Sequence[Any] | None:
    """Return arrays of NumPy; None if one is traced, or is of other processes too."""
    if any(isinstance(a, jax.core.Tracer) or not a.is_fully_addressable for a in arrays):
        return None
    return jax.device_get(arrays)


def _check_rows(name: str, tokens: ArrayLike, lengths: ArrayLike, vocab_size: int | None) -> None:
    """Check the valid tokens of each row of an array, as far as they are known."""
    known = _known(jnp.asarray(tokens), jnp.asarray(lengths)) if vocab_size is not None else None
    rows = zip(*known, strict=True) if known else ()
    check_vocabulary(name, (ids[:length].tolist() for ids, length in rows), vocab_size)


def encode_stop(
    model: GenerativeModel,
    stop: int | str | Sequence[int | str | Sequence[int]],
    tokenizer: Tokenizer | None,
) -> Sequence[int | Sequence[int]]:
    """Return stop sequences, with strings as their ids and the ids of tokens that contain them.

    Raises:
        ValueError: a string without a tokenizer; an id outside the vocabulary.
    """
    listed = [stop] if isinstance(stop, Integral | str) else stop
    found = [
        encode([part], tokenizer, "stop", special_tokens=False)[0]
        if isinstance(part, str)
        else part
        for part in listed
    ]
    known = getattr(model, "vocab_size", None)
    check_vocabulary("stop", found, known)
    sizes = [size for size in (known, getattr(tokenizer, "vocab_size", None)) if size is not None]
    for part, ids in zip(listed, tuple(found), strict=True):
        if isinstance(part, str) and ids:
            more = tokens_with(tokenizer, part, ids[0], min(sizes, default=0))
            found += [number for number in more if [number] != ids]
    return found


def encode_prompts(
    model: GenerativeModel, inputs: Sequence[Any], lengths: object, tokenizer: Tokenizer | None
) -> list[list[int]]:
    """Return the ids of inputs that are not an array.

    Raises:
        ValueError: an input without tokens, or with one outside the vocabulary; lengths beside a
            list.
    """
    if lengths is not None:
        raise ValueError("lengths are for arrays: a list has the length of each of its inputs")
    prompts = encode(inputs, tokenizer, "inputs")
    for number, ids in enumerate(prompts):
        if not ids:
            raise ValueError(f"inputs[{number}] has no tokens; each input needs at least 1")
    check_vocabulary("inputs", prompts, _input_vocab_size(model))
    return prompts


def array_rows(model: GenerativeModel, inputs: ArrayLike, lengths: ArrayLike | None) -> Rows:
    """Return ids `[B, P]` and their lengths in int32.

    Raises:
        TypeError: ids that are not integers.
        ValueError: shapes that do not fit; an input of length 0, or with a known token outside the
            vocabulary.
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
    _check_rows("inputs", inputs, lengths, _input_vocab_size(model))
    return {
        "active": jnp.ones(number, bool),
        "inputs": inputs.astype(jnp.int32),
        "lengths": jnp.asarray(lengths).astype(jnp.int32),
    }


def other_rows(
    model: GenerativeModel,
    number: int,
    start: ArrayLike | None,
    prefix: Prefix | Sequence[Any] | None,
    rng: Array | None,
    tokenizer: Tokenizer | None,
    max_tokens: int,
) -> Rows:
    """Return the other arrays of B rows: start, prefix and data of random keys.

    A prefix of lists is padded to a power of 2. The random key of a row is computed from its number
    and from no other row.

    Raises:
        TypeError: a start or a prefix that is not of integers, or of another shape; random keys
            that are not typed.
        ValueError: arguments for another number of rows; a start token for a decoder-only model, or
            none for an encoder-decoder model; a known token outside the vocabulary.
    """
    rows, vocab_size = {}, getattr(model, "vocab_size", None)
    if model.is_prompted and start is not None:
        raise ValueError("start is for encoder-decoder models; this one continues its inputs")
    if not model.is_prompted:
        if start is None:
            raise ValueError(
                "an encoder-decoder model needs start, the token that answers begin with"
            )
        start = jnp.asarray(start)
        if start.shape not in ((), (1,), (number,)) or not jnp.issubdtype(start.dtype, jnp.integer):
            raise TypeError(
                f"start needs one integer token, or one for each of {number} rows, "
                f"got {start.dtype} {start.shape}"
            )
        rows["start"] = jnp.broadcast_to(start.astype(jnp.int32), (number,))
        known = _known(start)
        check_vocabulary("start", known[0].ravel().tolist() if known else (), vocab_size)
    if prefix is not None:
        if not isinstance(prefix, Prefix):
            ids = encode(prefix, tokenizer, "prefix", special_tokens=False)
            longest = max(1, *map(len, ids), 1)
            width = max(longest, min(1 << (longest - 1).bit_length(), max_tokens))
            prefix = Prefix(*pad_lists(ids, width))
        rows["prefix"], rows["prefix_lengths"] = check_prefix(prefix, number, max_tokens)
        _check_rows("prefix", *prefix, vocab_size)
    if rng is not None:
        kind = getattr(rng, "dtype", type(rng).__name__)
        if not hasattr(rng, "dtype") or not jnp.issubdtype(kind, jax.dtypes.prng_key):
            raise TypeError(f"rng needs keys that jax.random.key makes, got {kind}")
        if rng.ndim == 0:
            numbers = jnp.arange(number, dtype=jnp.uint32)
            rng = jax.vmap(jax.random.fold_in, (None, 0))(rng, numbers)
        if rng.shape != (number,):
            raise ValueError(
                f"rng needs one key, or one for each of {number} rows, got {rng.shape}"
            )
        rows["rng"] = jax.random.key_data(rng)
    return rows


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


def pad_lists(rows: Sequence[Sequence[int]], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return int32 arrays: tokens `[B, width]`, padded with 0, and lengths `[B]`."""
    tokens = np.zeros((len(rows), width), np.int32)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = ids
    return tokens, np.array([len(ids) for ids in rows], np.int32)


def bucket_lengths(prompts: Sequence[Sequence[int]], buckets: Sequence[int] | None) -> list[int]:
    """Return the lengths that inputs are padded to, by default powers of 2 from `SHORTEST`.

    Raises:
        ValueError: an input longer than all buckets.
    """
    longest = max(map(len, prompts), default=0)
    if buckets is None:
        buckets = [SHORTEST]
        while buckets[-1] < longest:
            buckets.append(2 * buckets[-1])
    if longest > max(buckets):
        raise ValueError(f"an input has {longest} tokens, and the longest bucket {max(buckets)}")
    return sorted(buckets)


def limit_bucket(
    model: GenerativeModel, size: int, prompts: Sequence[Sequence[int]], max_tokens: int
) -> int:
    """Return a bucket that is no longer than inputs of the model can be, nor too short for any.

    An input that is longer itself is refused by `prefill`.
    """
    limit = model.max_input_length(max_tokens) if hasattr(model, "max_input_length") else None
    fitting = [len(ids) for ids in prompts if len(ids) <= size]
    return size if limit is None else max(min(size, limit), *fitting, 1)

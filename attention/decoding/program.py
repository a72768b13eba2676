"""The functions that `generate` and `stream` compile, and their inputs, checked and as arrays.

Texts and lists become ids, and lists are padded to few lengths. Arrays of lists are NumPy arrays,
which are made and indexed without compiling anything.
"""

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from attention.decoding.loop import DecodingLoop, LoopState, run_in_slots
from attention.decoding.output import (
    GenerationOutput,
    Prefix,
    StoppingCriteria,
    check_prefix,
    listed,
)
from attention.decoding.sampling import (
    DecodingOptions,
    Greedy,
    History,
    LogitProcessor,
    Observe,
    RowInputs,
    Strategy,
)
from attention.modules.context import check_rng
from attention.modules.transformer import unstack_layers
from attention.primitives.cache import check_lengths
from attention.primitives.masks import to_int32

SHORTEST = 16  # tokens: shorter inputs are padded rather than compiled for

Stop = int | str | ArrayLike | Sequence[int | str | Sequence[int]]
"""An id, ids, or sequences of ids, that end an answer; with a tokenizer also strings."""


Rows = dict[str, Any]
"""Arrays `[B, *]` by name: "inputs", "lengths" (0: not active) and, optionally, "start"
(encoder-decoder models), "prefix", "prefix_lengths" and "rng" (key data)."""


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


class GenerativeModel(Protocol):
    """A model that `generate` can use: a pytree with these methods, such as any `nnx.Module`.

    A model may also have `max_input_length(max_tokens) -> int | None`, the largest P that `prefill`
    accepts, None if any: then lists are not padded further. Known ids are checked if it has
    `vocab_size`, the number of its tokens, and as an encoder-decoder model `input_vocab_size`.

    Attributes:
        is_prompted: True for decoder-only models, which continue `inputs`; False for
            encoder-decoder models, whose answers begin with a start token.
    """

    is_prompted: bool

    def prefill(self, inputs: Array, lengths: Array, *, max_tokens: int) -> tuple[Any, Any]:
        """Read the inputs.

        Args:
            inputs: int32 `[B, P]`, padded at the end.
            lengths: int32 `[B]`, number of valid tokens per row, at least 1.
            max_tokens: number of steps that follow.

        Returns:
            The state, a pytree with leaves `[B, *]`, those that steps do not change inside
            `Constant`; and the token `[B]` that each row reads first, the last of its prompt, or
            None for encoder-decoder models.
        """

    def step(self, state: Any, tokens: Array, *, returning: tuple[str, ...]) -> tuple[Any, Any]:  # noqa: ANN401 - a pytree of the model
        """Read a token `[B]` of each row; return an `Output` with logits `[B, V]`, and the state.

        `returning` is empty, or the names that were passed to `generate`.
        """


@dataclass(frozen=True)
class GenerationProgram:
    """Functions of a model and arrays, and all static options that they are compiled for.

    Attributes:
        options: of the decoding loop.
        rng_impl: implementation of the random keys.
        returning: names that the step returns.
        names: of the arrays that `generate` is called with.
    """

    options: DecodingOptions
    rng_impl: Any = None
    returning: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def generate(self, model: GenerativeModel, *arrays: Array) -> GenerationOutput:
        """Generate R·T answers, R at a time, from arrays `[R, T, *]`: leaves `[R, T, *]`."""
        slots, rows_per_slot = arrays[0].shape[:2]
        rows = dict(zip(self.names, map(merge_slots, arrays), strict=True))
        prefill = jax.jit(functools.partial(self.prefill, model))  # so that it is traced once
        given = {name: rows[name] for name in ("inputs", "lengths", "start") if name in rows}
        inputs, loop = self.row_inputs(model, rows), self.loop(unstack(model))
        active = rows["lengths"] > 0
        if rows_per_slot == 1:
            output = loop.run_batch(*prefill(given), inputs, active)
        else:
            output = run_in_slots(loop, prefill, given, inputs, active, slots)
        return jax.tree.map(lambda leaf: split_slots(leaf, slots), output)

    def begin(self, model: GenerativeModel, rows: Rows) -> tuple[GenerativeModel, LoopState]:
        """Return the model with separate layers, and the first carry of the loop."""
        state, start = self.prefill(model, rows)
        inputs, model = self.row_inputs(model, rows), unstack(model)
        return model, self.loop(model).begin(state, start, inputs, rows["lengths"] > 0)

    def advance(
        self, model: GenerativeModel, carry: LoopState
    ) -> tuple[LoopState, tuple[Array, Array, Array]]:
        """Run one step; return its tokens, lengths of answers, and whether any row needs more."""
        loop = self.loop(model)
        carry = loop.advance(carry)
        lengths = self.options.strategy.output(carry.strategy_state).lengths
        return carry, (carry.tokens, lengths, loop.unfinished(carry).any())

    def loop(self, model: GenerativeModel) -> DecodingLoop:
        """Return the loop over the steps of a model."""
        return DecodingLoop(functools.partial(model.step, returning=self.returning), self.options)

    def prefill(self, model: GenerativeModel, rows: Rows) -> tuple[Any, Array]:
        """Return the state and the start of rows."""
        lengths, steps = jnp.maximum(rows["lengths"], 1), self.options.max_steps
        state, first = model.prefill(rows["inputs"], lengths, max_tokens=steps)
        return state, rows["start"] if first is None else first

    def row_inputs(self, model: GenerativeModel, rows: Rows) -> RowInputs:
        """Return the inputs of the loop: the history begins with the prompt, or the start."""
        if model.is_prompted:
            history = History(rows["inputs"], rows["lengths"])
        else:
            history = History(rows["start"][:, None], jnp.ones_like(rows["start"]))
        prefix = Prefix(rows["prefix"], rows["prefix_lengths"]) if "prefix" in rows else None
        rng = rows.get("rng")
        rng = None if rng is None else jax.random.wrap_key_data(rng, impl=self.rng_impl)
        return RowInputs(history, prefix, rng)

    @functools.lru_cache(maxsize=256)  # noqa: B019 - programs are small
    def compiled(self, method: str, compile: Callable[..., Any]) -> Callable[..., Any]:
        """Return a compiled method, the same for equal programs."""
        return compile(getattr(self, method))


def prepare(
    model: GenerativeModel,
    inputs: ArrayLike | Sequence[Any],
    *,
    max_tokens: int,
    strategy: Strategy = Greedy(),  # noqa: B008 - frozen
    lengths: ArrayLike | None = None,
    start: ArrayLike | None = None,
    stop: Stop = (),
    min_tokens: int = 0,
    prefix: Prefix | Sequence[Any] | None = None,
    logit_processors: Sequence[LogitProcessor] = (),
    rng: Array | None = None,
    returning: Sequence[str] = (),
    observe: Observe | None = None,
    tokenizer: Tokenizer | None = None,
) -> tuple[GenerationProgram, list[list[int]] | None, Rows]:
    """Check the arguments of `generate`, except for those that concern batches.

    Returns:
        The program; the ids of each input, None for an array; and arrays with a row for each input,
        those of an array of inputs among them.
    """
    if not (hasattr(model, "prefill") and hasattr(model, "step")):
        name = type(model).__name__
        raise TypeError(f"text generation needs a model with prefill and step, got {name}")
    check_rng(model, None, other="")
    written = getattr(model, "vocab_size", None)
    read = written if model.is_prompted else getattr(model, "input_vocab_size", None)
    stopping = StoppingCriteria(max_tokens, stop_ids(stop, tokenizer), min_tokens)
    check_vocabulary("stop", stopping.stop, written)
    options = DecodingOptions(strategy, stopping, logit_processors, observe)
    if hasattr(inputs, "shape"):
        prompts, rows = None, array_rows(inputs, lengths, read)
        number = len(rows["inputs"])
    else:
        if lengths is not None:
            raise ValueError("lengths are for arrays: a list has the length of each of its inputs")
        prompts, rows = encode(inputs, tokenizer, "inputs"), {}
        number = len(prompts)
        if [] in prompts:
            raise ValueError(f"inputs[{prompts.index([])}] has no tokens; each needs at least 1")
        check_vocabulary("inputs", prompts, read)
    if model.is_prompted != (start is None):
        raise ValueError("an encoder-decoder needs start=, its first token; other models take none")
    if start is not None:
        rows["start"] = jnp.broadcast_to(to_int32("start", start, 0), (number,))
        _check_array("start", rows["start"][:, None], jnp.ones(number, jnp.int32), written)
    if prefix is not None:
        prefix = check_prefix(as_prefix(prefix, tokenizer, max_tokens), number, max_tokens)
        _check_array("prefix", *prefix, written)
        rows |= {"prefix": prefix.tokens, "prefix_lengths": prefix.lengths}
    if rng is not None:
        rows["rng"] = rng_rows(rng, number)
    rng_impl = None if rng is None else jax.random.key_impl(rng)
    return GenerationProgram(options, rng_impl, tuple(returning)), prompts, rows


def unstack(model: GenerativeModel) -> GenerativeModel:
    """Return the model with separate layers, which decoding steps read without copies."""
    return unstack_layers(model) if isinstance(model, nnx.Module) else model


def merge_slots(array: Array) -> Array:
    """Map `[R, T, *]` to `[T·R, *]`."""
    return array.swapaxes(0, 1).reshape(-1, *array.shape[2:])


def split_slots(array: Array, slots: int) -> Array:
    """Map `[T·R, *]` to `[R, T, *]`."""
    return array.reshape(-1, slots, *array.shape[1:]).swapaxes(0, 1)


def encode(
    inputs: Sequence[Any], tokenizer: Tokenizer | None, name: str, *, special_tokens: bool = True
) -> list[list[int]]:
    """Return the ids of texts, or of lists of ids; `name` is that of the inputs, in errors."""
    if isinstance(inputs, str):
        raise ValueError(f"{name} is one string: pass a list of strings")
    options, has_text = {}, any(isinstance(part, str) for part in inputs)
    if has_text and tokenizer is None:
        raise ValueError(f"{name} has strings: pass a tokenizer with encode and decode")
    if has_text and not special_tokens:
        known = inspect.signature(tokenizer.encode).parameters
        options = {key: False for key in ("special_tokens", "add_special_tokens") if key in known}
    rows = [tokenizer.encode(one, **options) if isinstance(one, str) else one for one in inputs]
    try:
        return [[*map(operator.index, ids)] for ids in rows]
    except TypeError as error:
        raise TypeError(f"{name} needs lists of integer ids: {error}") from error


def as_prefix(
    prefix: Prefix | Sequence[Any], tokenizer: Tokenizer | None, max_tokens: int
) -> Prefix:
    """Return texts, or lists of ids, as a prefix, padded to one of few lengths."""
    if isinstance(prefix, Prefix):
        return prefix
    ids = encode(prefix, tokenizer, "prefix", special_tokens=False)
    longest = max([1, *map(len, ids)])
    return Prefix(*pad_lists(ids, max(longest, min(1 << (longest - 1).bit_length(), max_tokens))))


def stop_strings(stop: Stop) -> tuple[str, ...]:
    """Return the strings among the values of `stop`."""
    return tuple(part for part in listed(stop) if isinstance(part, str))


def stop_ids(stop: Stop, tokenizer: Tokenizer | None) -> list[Any]:
    """Return the values of `stop`, with strings as their ids."""
    strings = stop_strings(stop)
    ids = dict(zip(strings, encode(strings, tokenizer, "stop", special_tokens=False), strict=True))
    return [ids[part] if isinstance(part, str) else part for part in listed(stop)]


def check_vocabulary(name: str, rows: Iterable[Sequence[int]], vocab_size: int | None) -> None:
    """Raise a ValueError for an id outside [0, V), with its row; V may be unknown."""
    for row, ids in enumerate(rows if vocab_size is not None else ()):
        for token in ids:
            if not 0 <= token < vocab_size:
                raise ValueError(
                    f"{name}[{row}] has token {token}, and the vocabulary has {vocab_size} tokens"
                )


def _check_array(name: str, tokens: Array, lengths: Array, vocab_size: int | None) -> None:
    """Check the valid tokens of each row, unless they are traced, or of other processes too."""
    arrays = tokens, lengths
    if not any(isinstance(a, jax.core.Tracer) or not a.is_fully_addressable for a in arrays):
        rows = zip(*jax.device_get(arrays), strict=True)
        check_vocabulary(name, (ids[:length].tolist() for ids, length in rows), vocab_size)


def array_rows(inputs: ArrayLike, lengths: ArrayLike | None, vocab_size: int | None = None) -> Rows:
    """Return ids `[B, P]` and their lengths, at least 1, in int32."""
    inputs = jnp.asarray(inputs)
    if inputs.ndim != 2 or not jnp.issubdtype(inputs.dtype, jnp.integer):
        raise TypeError(f"inputs need integer ids [B, P], got {inputs.dtype} {inputs.shape}")
    number, width = inputs.shape
    lengths = jnp.full(number, width, jnp.int32) if lengths is None else jnp.asarray(lengths)
    check_lengths(lengths, width, least=1)
    if lengths.shape != (number,):
        raise ValueError(f"lengths need shape ({number},), got {lengths.shape}")
    _check_array("inputs", inputs, lengths, vocab_size)
    return {"inputs": inputs.astype(jnp.int32), "lengths": lengths.astype(jnp.int32)}


def rng_rows(rng: Array, number: int) -> Array:
    """Return the data of B random keys; that of a row depends on its number and no other row."""
    if not jnp.issubdtype(jnp.result_type(rng), jax.dtypes.prng_key):
        raise TypeError(f"rng needs keys that jax.random.key makes, got {rng}")
    if rng.ndim == 0:
        numbers = jnp.arange(number, dtype=jnp.uint32)
        rng = jax.vmap(jax.random.fold_in, (None, 0))(rng, numbers)
    if rng.shape != (number,):
        raise ValueError(f"rng needs one key, or one for each of {number} rows, got {rng.shape}")
    return jax.random.key_data(rng)


def pad_lists(rows: Sequence[Sequence[int]], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return int32 arrays: tokens `[B, width]`, padded with 0, and lengths `[B]`."""
    tokens = np.zeros((len(rows), width), np.int32)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = ids
    return tokens, np.array([len(ids) for ids in rows], np.int32)


def bucket_lengths(
    model: GenerativeModel,
    prompts: Sequence[Sequence[int]],
    buckets: Sequence[int] | None,
    max_tokens: int,
) -> list[int]:
    """Return the lengths that inputs are padded to, by default powers of 2 from `SHORTEST`.

    None is longer than `prefill` allows, unless an input is, which `prefill` refuses. Raises a
    ValueError for an input longer than all buckets.
    """
    longest = max(map(len, prompts), default=1)
    if buckets is None:
        buckets = [SHORTEST]
        while buckets[-1] < longest:
            buckets.append(2 * buckets[-1])
    if longest > (most := max(buckets, default=0)):
        raise ValueError(f"an input has {longest} tokens, and the longest bucket {most}")
    limit = model.max_input_length(max_tokens) if hasattr(model, "max_input_length") else None
    most = most if limit is None else max(limit, longest)
    return sorted({min(size, most) for size in buckets})

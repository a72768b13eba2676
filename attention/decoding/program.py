"""The functions that `generate` and `stream` compile: prefill and decoding loop of a model."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from attention.decoding.loop import DecodingLoop, LoopState, row_inputs, run_in_slots
from attention.decoding.output import GenerationOutput
from attention.decoding.sampling import DecodingOptions, History, RowInputs, check_hashable
from attention.decoding.stopping import Prefix
from attention.modules.transformer import unstack_layers

Rows = dict[str, Any]
"""Arrays `[B, *]` by name: "active", "inputs", "lengths" and, optionally, "start" (encoder-decoder
models), "prefix", "prefix_lengths" and "rng" (key data)."""


class GenerativeModel(Protocol):
    """A model that `generate` can use: a pytree with these methods, such as any `nnx.Module`.

    A model may also have `max_input_length(max_tokens) -> int | None`, the largest P that `prefill`
    accepts, None if any: then lists are not padded further. Known ids are checked if it has
    `vocab_size`, the number of its tokens, and as an encoder-decoder model `input_vocab_size`.

    Attributes:
        is_prompted: True if `inputs` are the beginning of the text that is continued (decoder-only
            models), False if answers begin with a start token (encoder-decoder models).
    """

    is_prompted: bool

    def prefill(
        self, inputs: Array, lengths: Array, *, max_tokens: int, cache_dtype: DTypeLike | None
    ) -> tuple[Any, Array | None]:
        """Read the inputs.

        Args:
            inputs: int32 `[B, P]`, padded at the end.
            lengths: int32 `[B]`, number of valid tokens per row, at least 1.
            max_tokens: number of steps that follow.
            cache_dtype: of keys and values; None for that of the computation.

        Returns:
            The state, a pytree with leaves `[B, *]`, those that steps do not change inside
            `Constant`; and the token `[B]` that each row reads first, the last of its prompt, or
            None for encoder-decoder models.

        Raises:
            ValueError: more tokens than the model has positions.
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
        cache_dtype: of keys and values.
        returning: names that the step returns.
        names: of the arrays that `generate` is called with.
    """

    options: DecodingOptions
    rng_impl: Any = None
    cache_dtype: DTypeLike | None = None
    returning: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def generate(self, model: GenerativeModel, *arrays: Array) -> GenerationOutput:
        """Generate R·T answers, R at a time, from arrays `[R, T, *]`: leaves `[R, T, *]`."""
        slots, rows_per_slot = arrays[0].shape[:2]
        rows = dict(zip(self.names, map(merge_slots, arrays), strict=True))
        prefill = jax.jit(functools.partial(self.prefill, model))  # so that it is traced once
        given = {name: rows[name] for name in ("inputs", "lengths", "start") if name in rows}
        inputs, loop = self.row_inputs(model, rows), self.loop(unstack(model))
        if rows_per_slot == 1:
            output = loop.run_batch(*prefill(given), inputs, rows["active"])
        else:
            output = run_in_slots(loop, prefill, given, inputs, rows["active"], slots)
        return jax.tree.map(lambda leaf: split_slots(leaf, slots), output)

    def begin(self, model: GenerativeModel, rows: Rows) -> tuple[GenerativeModel, LoopState]:
        """Return the model with separate layers, and the first carry of the loop."""
        state, start = self.prefill(model, rows)
        inputs, model = self.row_inputs(model, rows), unstack(model)
        return model, self.loop(model).begin(state, start, inputs, None)

    def advance(
        self, model: GenerativeModel, carry: LoopState
    ) -> tuple[LoopState, tuple[Array, Array, Array]]:
        """Run one step; return its tokens, lengths of answers, and whether any row needs more."""
        loop = self.loop(model)
        carry = loop.advance(loop.predict, carry)
        lengths = self.options.strategy.output(carry.strategy_state).lengths
        return carry, (carry.tokens, lengths, loop.unfinished(carry).any())

    def loop(self, model: GenerativeModel) -> DecodingLoop:
        """Return the loop over the steps of a model."""

        def step(state: object, tokens: Array) -> tuple[Any, Any]:
            return model.step(state, tokens, returning=self.returning)

        return DecodingLoop(step, self.options)

    def prefill(self, model: GenerativeModel, rows: Rows) -> tuple[Any, Array]:
        """Return the state and the start of rows."""
        state, first = model.prefill(
            rows["inputs"],
            jnp.maximum(rows["lengths"], 1),  # 0 in rows that are not active
            max_tokens=self.options.max_steps,
            cache_dtype=self.cache_dtype,
        )
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
        return row_inputs(history, prefix, rng, self.options.stopping.max_tokens)


def compiled(
    program: GenerationProgram, method: str, compile: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a compiled method, the same for equal arguments.

    Raises:
        TypeError: a logit processor that is not hashable.
    """
    check_hashable(program.options.logit_processors)
    return _compiled(program, method, compile)


@functools.lru_cache(maxsize=256)
def _compiled(
    program: GenerationProgram, method: str, compile: Callable[..., Any]
) -> Callable[..., Any]:
    return compile(getattr(program, method))


def unstack(model: GenerativeModel) -> GenerativeModel:
    """Return the model with separate layers, which decoding steps read without copies."""
    return unstack_layers(model) if isinstance(model, nnx.Module) else model


def merge_slots(array: Array) -> Array:
    """Map `[R, T, *]` to `[T·R, *]`."""
    return array.swapaxes(0, 1).reshape(-1, *array.shape[2:])


def split_slots(array: Array, slots: int) -> Array:
    """Map `[T·R, *]` to `[R, T, *]`."""
    return array.reshape(-1, slots, *array.shape[1:]).swapaxes(0, 1)

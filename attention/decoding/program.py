"""One program of `generate`: prefill and decoding loop of a model, for inputs of one shape."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from attention.decoding.continuous import decode_continuously
from attention.decoding.loop import Observe, decode
from attention.decoding.output import GenerationOutput
from attention.decoding.processors import History, LogitProcessor
from attention.decoding.stopping import Prefix, StoppingCriteria
from attention.decoding.strategy import Strategy
from attention.modules.layers import unstack_layers

Rows = dict[str, Any]
"""Arrays `[B, *]` by name: "active", "inputs", "lengths" and, optionally, "start" (encoder-decoder
models), "prefix", "prefix_lengths" and "rng" (key data)."""


class GenerativeModel(Protocol):
    """A model that `generate` can use: a pytree with these methods, such as any `nnx.Module`.

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
            inputs: int32 `[B, P]`, padded behind.
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
class Program:
    """All settings that are fixed when a program is compiled.

    Attributes:
        strategy, stopping, logit_processors, observe, max_steps: as in `decode`.
        rng_impl: implementation of the random keys.
        cache_dtype: of keys and values.
        returning: names that the step returns.
        names: of the arrays `[R, T, *]` that the program is called with.
    """

    strategy: Strategy
    stopping: StoppingCriteria
    logit_processors: tuple[LogitProcessor, ...]
    rng_impl: Any
    cache_dtype: DTypeLike | None
    observe: Observe | None = None
    returning: tuple[str, ...] = ()
    max_steps: int | None = None
    names: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Return the number of steps after which unfinished rows are discarded."""
        return self.stopping.max_tokens if self.max_steps is None else self.max_steps

    def with_steps(self, max_steps: int | Callable[[int], int] | None, length: int) -> "Program":
        """Return the program with `max_steps`, a number or a function of the padded length."""
        found = max_steps(length) if callable(max_steps) else max_steps
        return replace(
            self, max_steps=None if found is None else min(found, self.stopping.max_tokens)
        )

    def __call__(self, model: GenerativeModel, *arrays: Array) -> GenerationOutput:
        """Generate R·T answers, R at a time.

        Args:
            model: the model.
            arrays: `[R, T, *]`, T rows for each of R slots.

        Returns:
            Leaves `[R, T, *]`.
        """
        slots, turns = arrays[0].shape[:2]
        rows = dict(zip(self.names, map(by_turns, arrays), strict=True))
        prefill = jax.jit(functools.partial(self.prefill, model))  # so that it is traced once
        request = self.request(model, rows)
        given = {name: rows[name] for name in ("inputs", "lengths", "start") if name in rows}
        common = {**request, "observe": self.observation, "max_steps": self.steps}
        common["logit_processors"] = self.logit_processors
        step = self.stepping(unstack(model))
        if turns == 1:
            output = decode(step, *prefill(given), self.strategy, self.stopping, **common)
        else:
            output = decode_continuously(
                step, prefill, given, self.strategy, self.stopping, slots=slots, **common
            )
        return jax.tree.map(lambda leaf: by_slots(leaf, slots), output)

    def prefill(self, model: GenerativeModel, rows: Rows) -> tuple[Any, Array]:
        """Return the state and the start of rows."""
        lengths = jnp.maximum(rows["lengths"], 1)  # rows that are not active have none
        options = {"max_tokens": self.steps, "cache_dtype": self.cache_dtype}
        state, first = model.prefill(rows["inputs"], lengths, **options)
        return state, rows["start"] if first is None else first

    def stepping(self, model: GenerativeModel) -> Callable[[Any, Array], tuple[Any, Any]]:
        """Return the step of `decode`."""
        return lambda state, tokens: model.step(state, tokens, returning=self.returning)

    @property
    def observation(self) -> Observe | None:
        """Return what is kept of each step: by default what was named in `returning`."""
        if self.observe is None and self.returning:
            return lambda output: output.attention
        return self.observe

    def request(self, model: GenerativeModel, rows: Rows) -> dict[str, Any]:
        """Return the arguments of `decode` that belong to rows."""
        found = {"active": rows["active"]}
        if model.is_prompted:
            found["history"] = History(rows["inputs"], rows["lengths"])
        else:
            found["history"] = History(rows["start"][:, None], jnp.ones_like(rows["start"]))
        if "prefix" in rows:
            found["prefix"] = Prefix(rows["prefix"], rows["prefix_lengths"])
        if "rng" in rows:
            found["rng"] = jax.random.wrap_key_data(rows["rng"], impl=self.rng_impl)
        return found


@functools.lru_cache(maxsize=256)
def compiled(function: Callable[..., Any], compile: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled function, the same for equal arguments."""
    return compile(function)


def unstack(model: GenerativeModel) -> GenerativeModel:
    """Return the model with separate layers, which decoding steps read without copies."""
    return unstack_layers(model) if isinstance(model, nnx.Module) else model


def by_turns(array: Array) -> Array:
    """Map `[R, T, *]` to `[T·R, *]`."""
    return array.swapaxes(0, 1).reshape(-1, *array.shape[2:])


def by_slots(array: Array, slots: int) -> Array:
    """Map `[T·R, *]` to `[R, T, *]`."""
    return array.reshape(-1, slots, *array.shape[1:]).swapaxes(0, 1)

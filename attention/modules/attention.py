"""Attention with learned projections: one module for self- and cross-attention."""

from collections.abc import Collection

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.config import resolve_head_width, resolve_kv_heads
from attention.primitives.attend import attend
from attention.primitives.dropout import Dropout
from attention.primitives.masks import Mask
from attention.primitives.positions import rotary


class Attention(nnx.Module):
    """Projects inputs to queries, a memory to keys and values, attends, and projects back.

    The memory is the input itself (self-attention) unless another is given (cross-attention).
    """

    def __init__(
        self,
        width: int,
        *,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_width: int | None = None,
        value_width: int | None = None,
        memory_width: int | None = None,
        use_bias: bool = True,
        rotate: bool = False,
        implementation: str | None = None,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the four projections.

        Args:
            width: D, of the inputs and the outputs.
            num_heads: N.
            num_kv_heads: K, N by default; must divide N.
            head_width: H of queries and keys, D / N by default.
            value_width: Hv, H by default.
            memory_width: width of the memory, D by default.
            use_bias: whether the projections add a bias.
            rotate: whether queries and keys are turned by their positions (rotary positions).
            implementation: as in `attention.attend`.
            dropout: rate on the attention weights.
            rngs: source of the initial parameters.

        Raises:
            ValueError: N not divisible by K, D not by N where H is not given, or a rate outside
                [0, 1).
        """
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        num_kv_heads = resolve_kv_heads(num_heads, num_kv_heads)
        head_width = resolve_head_width(width, num_heads, head_width)
        value_width = head_width if value_width is None else value_width
        memory_width = width if memory_width is None else memory_width

        def heads(features: int, number: int, head_features: int) -> nnx.LinearGeneral:
            shape = (number, head_features)
            return nnx.LinearGeneral(features, shape, use_bias=use_bias, rngs=rngs)

        self.query = heads(width, num_heads, head_width)
        self.key = heads(memory_width, num_kv_heads, head_width)
        self.value = heads(memory_width, num_kv_heads, value_width)
        self.output = nnx.LinearGeneral(
            (num_heads, value_width), width, axis=(-2, -1), use_bias=use_bias, rngs=rngs
        )
        self.rotate = rotate
        self.implementation = implementation
        self.dropout = dropout

    def __call__(
        self,
        inputs: Array,
        memory: Array | None = None,
        *,
        mask: Mask | Array | None = None,
        positions: tuple[Array, Array] | None = None,
        key: Array | None = None,
        returning: Collection[str] = (),
    ) -> tuple[Array, dict[str, Array]]:
        """Attends from the inputs to the memory.

        Args:
            inputs: `[..., T, D]`.
            memory: `[..., S, memory_width]`; the inputs by default.
            mask: as in `attention.attend`.
            positions: as in `attention.attend`.
            key: random key for dropout, none without.
            returning: as in `attention.attend`.

        Returns:
            `[..., T, D]`, and a dict with what was asked for in `returning`.
        """
        memory = inputs if memory is None else memory
        dropout = None
        if key is not None and self.dropout:  # a key for each example: each drops its own pairs
            dropout = Dropout(jax.random.split(key, inputs.shape[:-2]), self.dropout)
        query, key_heads, value = self.query(inputs), self.key(memory), self.value(memory)
        if self.rotate:
            num_queries, num_keys = query.shape[-3], key_heads.shape[-3]
            if positions is None and num_queries != num_keys:
                raise ValueError(
                    f"{num_queries} queries and {num_keys} keys leave open where they stand: "
                    "rotary positions need positions=(query_positions, key_positions)"
                )
            counted = jnp.arange(num_queries), jnp.arange(num_keys)
            query_positions, key_positions = counted if positions is None else positions
            query = rotary(query, query_positions)
            key_heads = rotary(key_heads, key_positions)
        attended = attend(
            query,
            key_heads,
            value,
            mask=mask,
            positions=positions,
            dropout=dropout,
            returning=returning,
            implementation=self.implementation,
        )
        attended, extras = attended if returning else (attended, {})
        return self.output(attended), extras

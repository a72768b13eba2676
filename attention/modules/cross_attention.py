"""Attention from a decoder to the output of an encoder."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from attention.modules.attention import Attention
from attention.modules.context import DEFAULT_CONTEXT, CacheSpec, Context, Output, type_of
from attention.primitives.cache import Cache, Constant, full_cache
from attention.primitives.masks import Mask, leaves_of


class EncoderCache(NamedTuple):
    """Keys and values of an encoder output, and their positions `[..., S]` or None."""

    keys: Cache
    positions: Array | None


class CrossAttention(Attention):
    """Attention from the inputs to the encoder output of the context (`source_width` wide)."""

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map inputs `[..., T, D]` to `[..., T, D]`.

        Raises:
            ValueError: no encoder output, one of another width or one beside a cache, a cache of
                another layer, and as `attention.attend`.
        """
        context.check_source()
        query = self._queries(inputs, context)
        if context.cache is not None:
            value = getattr(context.cache, "value", None)
            if not isinstance(value, EncoderCache):
                raise ValueError(
                    "cross-attention needs a cache made by its new_cache, got "
                    f"{type_of(context.cache)}"
                )
            cache, encoder_positions = value
            num_keys = cache.size
        elif context.encoder_output is None:
            raise ValueError(
                "cross-attention needs Context(encoder_output=...): a decoder without an encoder "
                "output has no cross-attention"
            )
        else:
            key, value = self._project_source(context.encoder_output, context)
            cache, encoder_positions, num_keys = None, context.encoder_positions, key.shape[-3]
        positions, mask = None, context.encoder_mask
        is_given = context.positions is not None or encoder_positions is not None
        if is_given or (query.shape[-3] != num_keys and _compares_positions(mask)):
            positions = (
                _counted(query.shape[-3]) if context.positions is None else context.positions,
                _counted(num_keys) if encoder_positions is None else encoder_positions,
            )
        if cache is not None:
            attended = self._attend(query, cache.view(positions), mask=mask, context=context)
            return attended._replace(cache=context.cache)
        return self._attend(query, key, value, mask=mask, positions=positions, context=context)

    def new_cache(self, spec: CacheSpec) -> Constant:
        """Return the keys and values of the encoder output, computed once.

        Raises:
            ValueError: no encoder output.
        """
        if spec.encoder_output is None:
            raise ValueError("the cache of cross-attention needs CacheSpec(encoder_output=...)")
        key, value = self._project_source(spec.encoder_output, Context(constrain=spec.constrain))
        if spec.dtype is not None:
            key, value = key.astype(spec.dtype), value.astype(spec.dtype)
        return Constant(EncoderCache(full_cache(key, value), spec.encoder_positions))

    def _project_source(self, source: Array, context: Context) -> tuple[Array, Array]:
        width, expected = source.shape[-1], self.key.kernel.shape[0]
        if width != expected:
            raise ValueError(
                f"the encoder output has width {width}, and cross-attention has "
                f"source_width={expected}"
            )
        return self._keys_and_values(source, context)


def _compares_positions(mask: Mask | Array | None) -> bool:
    """Return whether `attend` requires positions for T queries and another number of keys."""
    return isinstance(mask, Mask) and any(leaf.compares_positions for leaf in leaves_of(mask))


def _counted(length: int) -> Array:
    """Return the positions of queries or keys, counted from 0."""
    return jnp.arange(length, dtype=jnp.int32)

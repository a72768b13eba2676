"""Gated linear recurrence as a sublayer, for hybrids of Transformers and recurrent networks."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from attention.modules.context import DEFAULT_CONTEXT, CacheSpec, Context, Output
from attention.modules.linear import linear
from attention.modules.recurrent.encoder import valid_tokens
from attention.primitives.masks import CuSeqlens, Mask, Segments, leaves_of
from attention.primitives.numerics import wide


class RecurrentLayer(nnx.Module):
    """Minimal gated recurrent unit: h[t] = (1 - z[t]) h[t-1] + z[t] V x[t], z[t] = sigmoid(W x[t]).

    Feng et al. 2024, "Were RNNs All We Needed?", section 3.1, with a linear output layer. Neither
    gate nor candidate depends on h, so a full pass is one `jax.lax.associative_scan` over T. The
    layer is causal, also in an encoder. The state is computed in float32 at least.
    """

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        rngs: nnx.Rngs,
        **dtypes: DTypeLike | None,
    ) -> None:
        """Make the layers of gate, candidate and output.

        Args:
            width: D, of inputs and outputs.
            hidden: F, of the state; D if None.
            rngs: source of the initial parameters.
            dtypes: `dtype` and `param_dtype`, as in flax.
        """
        self.hidden = width if hidden is None else hidden
        sizes = {"embed": width}, {"hidden": self.hidden}
        self.gate = linear(*sizes, rngs=rngs, **dtypes)
        self.candidate = linear(*sizes, rngs=rngs, **dtypes)
        self.output = linear(*sizes[::-1], rngs=rngs, **dtypes)

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., T, D]` to `[..., T, D]`.

        Args:
            inputs: `[..., T, D]`.
            context: after its `lengths` the state stays as it is; where `masks.segments` or
                `masks.cu_seqlens` in its `mask` begin a sequence, the state starts anew; `cache`
                is the state of `new_cache`. No other mask has an effect, so without `lengths`
                padding must follow the valid tokens.

        Raises:
            ValueError: lengths outside [0, T]; a cache of another layer.
            TypeError: lengths that are not integers.
        """
        *batch, num_tokens, _ = inputs.shape
        valid = valid_tokens(context.lengths, batch, num_tokens)
        if valid is not None:
            inputs = jnp.where(valid[..., None], inputs, 0)
        narrow = self.gate(inputs)
        gate, candidate = wide(narrow, self.candidate(inputs))
        update = jax.nn.sigmoid(gate)
        keep, new = 1 - update, update * candidate
        for starts in _starts(context, num_tokens):
            keep = jnp.where(starts[..., None], 0, keep)
        if valid is not None:
            keep, new = jnp.where(valid[..., None], keep, 1), jnp.where(valid[..., None], new, 0)
        kept, states = jax.lax.associative_scan(_compose, (keep, new), axis=inputs.ndim - 2)
        cache = context.cache
        if cache is not None:
            expected = (*batch, self.hidden)
            if getattr(cache, "shape", None) != expected:
                raise ValueError(f"this recurrent layer needs a cache of shape {expected}")
            states = states + kept * cache.astype(kept.dtype)[..., None, :]
            cache = states[..., -1, :].astype(cache.dtype)
        return Output(self.output(states.astype(narrow.dtype)), cache=cache)

    def new_cache(self, spec: CacheSpec) -> Array:
        """Return the state before the first token, 0 `[..., F]`, in float32 at least by default."""
        dtype = spec.dtype or self.gate.dtype or self.gate.kernel.dtype
        state = jnp.zeros((*spec.batch, self.hidden), dtype)
        return state if spec.dtype else wide(state)[0]


def _compose(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """Compose two maps h -> keep · h + new."""
    return first[0] * second[0], second[0] * first[1] + second[1]


def _starts(context: Context, num_tokens: int) -> Iterator[Array]:
    """Yield where a packed sequence begins, bool `[..., T]`, for each mask of packed rows."""
    positions = context.positions
    positions = jnp.arange(num_tokens, dtype=jnp.int32) if positions is None else positions
    mask = context.mask
    for leaf in leaves_of(mask) if isinstance(mask, Mask) else ():
        if isinstance(leaf, Segments):
            starts = jnp.diff(leaf.query_segments, axis=-1, prepend=0) != 0
            batch = jnp.broadcast_shapes(starts.shape[:-1], positions.shape[:-1])
            starts = jnp.broadcast_to(starts, (*batch, starts.shape[-1]))
            at = jnp.broadcast_to(positions, (*batch, positions.shape[-1]))
            yield jnp.take_along_axis(starts, at, axis=-1, mode="clip")
        elif isinstance(leaf, CuSeqlens):
            yield (positions[..., :, None] == leaf.query_offsets[..., None, :]).any(axis=-1)

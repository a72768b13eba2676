"""Attention by kernels for a GPU: what it takes, what it refuses and how it is called."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.kernels.derivatives import Found, Settings, attention
from attention.primitives.kernels.layout import Fixed, Learned, common_dtype, split
from attention.primitives.kernels.sizes import WIDEST, KernelSizes, power_of_two, sizes_for
from attention.primitives.kernels.tile_mask import mask_refusal
from attention.primitives.kernels.tile_score import score_refusal
from attention.primitives.quarantine import finite
from attention.primitives.request import Request
from attention.primitives.sinks import share_with_sinks

_DTYPES = ("float32", "bfloat16", "float16")


def refusal(request: Request, interpret: bool = False) -> str | None:
    """Why the kernels cannot compute a request here, in half a sentence; None if they can.

    Args:
        request: what to compute.
        interpret: whether the kernels would be interpreted, which any platform can.
    """
    inputs = request.query, request.key, request.value
    if jax.default_backend() != "gpu" and not interpret:
        return f"its kernels are for a GPU, and this is {jax.default_backend()}"
    if other := {str(array.dtype) for array in inputs} - set(_DTYPES):
        return f"it computes in float32 at most, and there is {', '.join(sorted(other))}"
    if not all(array.size for array in inputs):
        return "there is nothing to compute"
    if (width := max(request.query.shape[-1], request.value.shape[-1])) > WIDEST:
        return f"a head of width {width} is wider than its {WIDEST}"
    if more := set(request.returning) - {"logsumexp"}:
        return f"it returns no {', '.join(sorted(more))}"
    if why := mask_refusal(request.mask, request.counted):
        return why
    return next((why for score in request.scores if (why := score_refusal(score))), None)


def attend_by_kernel(
    request: Request,
    interpret: bool = False,
    sizes: KernelSizes | None = None,
) -> dict[str, Array]:
    """`attend` for a request that is not refused: "output" and "logsumexp".

    Args:
        request: what to compute.
        interpret: whether to run the kernels as ordinary JAX, on any platform.
        sizes: of the tiles; by default from a table, by dtype and head width.
    """
    if sizes is None:
        width = power_of_two(max(request.query.shape[-1], request.value.shape[-1]))
        sizes = sizes_for(common_dtype(request.query, request.key, request.value), width)
    settings = Settings(sizes, interpret, request.counted)
    output, logsumexp = _attend(settings, *split(request), request.broken)
    return share_with_sinks({"output": output, "logsumexp": logsumexp}, request.sinks)


@partial(jax.jit, static_argnums=0)
def _attend(settings: Settings, learned: Learned, fixed: Fixed, broken: Array | None) -> Found:
    query, key, value, query_ok, key_ok = finite(learned.query, learned.key, learned.value, broken)
    learned = learned._replace(query=query, key=key, value=value)
    output, logsumexp = attention(settings, learned, fixed)
    poisoned = jax.lax.cond(  # bool [..., T, N]
        query_ok.all() & key_ok.all(),
        lambda: jnp.zeros(query_ok.shape, bool),
        lambda: _poisoned_rows(settings, query_ok, key_ok, query.dtype, fixed),
    )
    return (
        jnp.where(poisoned[..., None], jnp.nan, output),
        jnp.where(jnp.swapaxes(poisoned, -1, -2), jnp.nan, logsumexp),
    )


def _poisoned_rows(
    settings: Settings, query_ok: Array, key_ok: Array, dtype: jnp.dtype, fixed: Fixed
) -> Array:
    """Which queries may attend to a number that is not finite, bool `[..., T, N]`.

    A query that attends to all it may see alike, to 1 for a bad key and 0 for a good one, finds
    more than 0 if it may see a bad one. So the kernel that skips tiles answers this too.
    """
    alike = Learned(
        query=jnp.zeros((*query_ok.shape, 1), dtype),
        key=jnp.zeros((*key_ok.shape, 1), dtype),
        value=(~key_ok)[..., None].astype(dtype),
        scale=jnp.ones((), jnp.float32),
        scores=(),
    )
    share, logsumexp = attention(settings, alike, fixed._replace(dropout=None))
    sees_nothing = jnp.isneginf(jnp.swapaxes(logsumexp, -1, -2))
    return (share[..., 0] > 0) | (~query_ok & ~sees_nothing)

"""Attention by splash attention, the kernel for a TPU that comes with JAX.

Forward and backward are the kernel's; it has no forward mode, so other derivatives are those of
tiles.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import frexp

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu import splash_attention

from attention.primitives import masks, scores
from attention.primitives.request import Request
from attention.primitives.tiled.poison import sees_non_finite
from attention.primitives.vendor.band import Band, split_band
from attention.primitives.vendor.derivatives import with_all_derivatives
from attention.primitives.vendor.repair import repaired

LANES = 128  # the kernel cuts queries and keys into multiples of this many


def refusal(request: Request, interpret: bool = False) -> str | None:
    """Why it cannot compute a request here, in half a sentence; None if it can.

    Args:
        request: what to compute.
        interpret: whether the kernel would be interpreted, which any platform can.
    """
    inputs = request.query, request.key, request.value
    if (platform := jax.default_backend()) != "tpu" and not interpret:
        return f"its kernels are for a TPU, and this is {platform}"
    if jax.config.jax_enable_x64 and not interpret:
        return "its kernels do not compile where jax_enable_x64 is set"
    if not all(array.size for array in inputs):
        return "there is nothing to compute"
    if len(dtypes := {str(array.dtype) for array in inputs}) > 1:
        return f"its inputs share one dtype, and there are {', '.join(sorted(dtypes))}"
    if (dtype := dtypes.pop()) not in ("float32", "bfloat16"):
        return f"it computes in float32 and bfloat16 alone, and there is {dtype}"
    if request.dropout is not None:
        return "it has no dropout"
    if request.sinks:
        return "its attention sinks were not tried"
    if request.returning:
        return f"it returns no {', '.join(sorted(request.returning))}"
    if len(request.scores) > 1 or not all(
        isinstance(score, scores._Softcap) for score in request.scores
    ):
        return "of the scores it knows a single softcap alone"
    return _mask_refusal(request)


def _mask_refusal(request: Request) -> str | None:
    _, others = split_band(request)
    if others and not request.counted:
        return "its masks count positions from 0"
    if not all(isinstance(mask, masks._Segments | masks._Lengths) for mask in others):
        return "its masks are causal, window, segments, lengths, and these composed by &"
    if sum(isinstance(mask, masks._Segments) for mask in others) > 1:
        return "it takes one mask of segments"
    return None


def attend_by_splash(request: Request, interpret: bool = False) -> dict[str, Array]:
    """`attend` for a request that is not refused: "output".

    Args:
        request: what to compute.
        interpret: whether to run the kernel as ordinary JAX, on any platform.
    """
    scale = request.scale
    constant = None if isinstance(scale, jax.Array) else float(scale)
    return {"output": _attend(interpret, constant, request)}


@partial(jax.jit, static_argnums=(0, 1))
def _attend(interpret: bool, scale: float | None, request: Request) -> Array:
    band, others = split_band(request)
    softcap = request.scores[0].limit if request.scores else None
    library = _Splash(band, bool(others), softcap, interpret)

    def attention(request: Request) -> Array:
        return with_all_derivatives(library, _scaled(request, scale))

    return repaired(request, attention, _sees_something(request) if others else None)


def _scaled(request: Request, scale: float | None) -> Request:
    """The same scores from a scale of 1.

    A query in bfloat16 that is scaled by another number than a power of two is rounded once more,
    so what was rounded off stands beside it: twice the head width, and the products are exact.
    """
    query, key = request.query, request.key
    scaled = request.scale * query.astype(jnp.float32)
    rounded = scaled.astype(query.dtype)
    is_power_of_two = scale is not None and abs(frexp(scale)[0]) == 0.5
    if query.dtype == jnp.float32 or is_power_of_two:
        return replace(request, query=rounded, scale=1.0)
    rest = (scaled - rounded.astype(jnp.float32)).astype(query.dtype)
    query, key = jnp.concatenate([rounded, rest], -1), jnp.concatenate([key, key], -1)
    return replace(request, query=query, key=key, scale=1.0)


def _sees_something(request: Request) -> Array:
    """Bool `[..., T, N]`: of queries that are all bad, those see one that see anything."""
    none = jnp.zeros(request.query.shape[:-1], bool)
    return sees_non_finite(request, none, jnp.ones(request.key.shape[:-1], bool))


@dataclass(frozen=True)
class _Splash:
    band: Band
    segmented: bool
    softcap: float | None
    interpret: bool

    def __call__(self, request: Request) -> Array:
        num_queries, num_heads = request.query.shape[-3:-1]
        num_keys = request.key.shape[-3]
        shape = tuple(-(-size // LANES) * LANES for size in (num_queries, num_keys))
        kernel = splash_attention.make_splash_mha(
            splash_attention.MultiHeadMask([_mask(self.band, shape)] * num_heads),
            block_sizes=_block_sizes(*shape),
            head_shards=1,
            q_seq_shards=1,
            attn_logits_soft_cap=self.softcap,
            interpret=self.interpret,
        )
        segments = None
        if self.segmented or shape[1] != num_keys:
            segments = _segments(request, shape)

        def heads_first(array: Array, size: int) -> Array:  # [..., T, N, H] -> [B, N, T, H]
            array = jnp.moveaxis(array.reshape(-1, *array.shape[-3:]), 2, 1)
            return jnp.pad(array, [(0, 0), (0, 0), (0, size - array.shape[2]), (0, 0)])

        inputs = (
            heads_first(request.query, shape[0]),
            heads_first(request.key, shape[1]),
            heads_first(request.value, shape[1]),
        )
        # The default product of float32 on a TPU is of fewer digits.
        exact = "highest" if request.query.dtype == jnp.float32 else None
        with jax.default_matmul_precision(exact):
            output = jax.vmap(kernel)(*inputs, segments)
        output = jnp.moveaxis(output[:, :, :num_queries], 1, 2)
        return output.reshape(*request.query.shape[:-1], -1)


def _mask(band: Band, shape: tuple[int, int]) -> splash_attention.Mask:
    if band == Band():
        return splash_attention.FullMask(shape)
    if band.before is None:
        return splash_attention.CausalMask(shape)
    return splash_attention.LocalMask(shape, (band.before, band.after), offset=0)


def _block_sizes(num_queries: int, num_keys: int) -> splash_attention.BlockSizes:
    rows, columns = (
        next(block for block in (512, 384, 256, 128) if size % block == 0)
        for size in (num_queries, num_keys)
    )
    return splash_attention.BlockSizes(
        block_q=rows,
        block_kv=columns,
        block_kv_compute=columns,
        block_q_dkv=rows,
        block_kv_dkv=columns,
        block_kv_dkv_compute=columns,
        block_q_dq=rows,
        block_kv_dq=columns,
    )


def _segments(request: Request, shape: tuple[int, int]) -> splash_attention.SegmentIds:
    """Segments `[B, T]` and `[B, S]` of whole blocks; keys that none may see have one of their own.

    These are what lengths hide, and what was added.
    """
    num_queries, num_keys = request.query.shape[-3], request.key.shape[-3]
    query, key = jnp.zeros(num_queries, jnp.int32), jnp.zeros(num_keys, jnp.int32)
    _, others = split_band(request)
    for mask in others:
        if isinstance(mask, masks._Segments):
            query, key = mask.query_segments, mask.key_segments
    query, key = (
        jnp.broadcast_to(ids, (*request.batch, ids.shape[-1])).reshape(-1, ids.shape[-1])
        for ids in (query, key)
    )
    nobody = jnp.maximum(query.max(), key.max()) + 1
    for mask in others:
        if isinstance(mask, masks._Lengths):
            lengths = jnp.broadcast_to(mask.lengths, request.batch).reshape(-1, 1)
            key = jnp.where(jnp.arange(num_keys, dtype=jnp.int32)[None] < lengths, key, nobody)
    added = [(0, size - ids.shape[-1]) for size, ids in zip(shape, (query, key), strict=True)]
    return splash_attention.SegmentIds(
        q=jnp.pad(query, [(0, 0), added[0]], mode="edge"),
        kv=jnp.pad(key, [(0, 0), added[1]], constant_values=nobody),
    )

"""Attention by splash attention, the kernel for a TPU that is part of JAX.

Imports it when it is called for the first time.
"""

from functools import partial
from math import frexp

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives import masks, scores
from attention.primitives.arguments import Arguments
from attention.primitives.first_order import first_order_library
from attention.primitives.nonfinite import attends_to_nonfinite
from attention.primitives.vendor.band import Band, split_band
from attention.primitives.vendor.edge_cases import handle_edge_cases, with_dense_mask
from attention.primitives.vendor.jax_nn import option_refusal

LANES = 128  # the kernel needs multiples of this many queries and keys

Segments = tuple[Array, Array]  # int32 [B, T] and [B, S], both padded


def refusal(arguments: Arguments, platform: str, interpret: bool = False) -> str | None:
    """Return why it cannot compute this, in half a sentence; None if it can.

    Args:
        arguments: the validated arguments.
        platform: as in `attend.Implementation`.
        interpret: whether the kernel would be interpreted, which works on any platform.
    """
    inputs = arguments.query, arguments.key, arguments.value
    if platform != "tpu" and not interpret:
        return f"its kernels are for a TPU, and the platform is {platform}"
    if jax.config.jax_enable_x64 and not interpret:
        return "its kernels do not compile if jax_enable_x64 is set"
    if not all(array.size for array in inputs):
        return "an input is empty"
    if len(dtypes := {str(array.dtype) for array in inputs}) > 1:
        return f"its inputs must have one dtype, and they have {', '.join(sorted(dtypes))}"
    if (dtype := dtypes.pop()) not in ("float32", "bfloat16"):
        return f"it computes in float32 and bfloat16 only, and the inputs are {dtype}"
    if why := option_refusal(arguments):
        return why
    if len(arguments.scores) > 1 or not all(
        isinstance(score, scores.Softcap) for score in arguments.scores
    ):
        return "a single softcap is its only score function"
    return _mask_refusal(arguments)


def _mask_refusal(arguments: Arguments) -> str | None:
    _, others = split_band(arguments)
    if others and not arguments.counted:
        return "its masks need positions that count from 0"
    kinds = masks.Segments | masks.Lengths | masks.QueryLengths
    if arguments.allowed is not None or not all(isinstance(mask, kinds) for mask in others):
        return "its masks are causal, window, segments, lengths, and these composed by &"
    if sum(isinstance(mask, masks.Segments) for mask in others) > 1:
        return "it takes one mask of segments"
    return None


def attend_by_splash(arguments: Arguments, *, interpret: bool = False) -> dict[str, Array]:
    """Return "output" for arguments that are not refused.

    Args:
        arguments: the validated arguments.
        interpret: whether to run the kernel as ordinary JAX, on any platform.
    """
    scale = arguments.scale
    constant = None if isinstance(scale, jax.Array) else float(scale)
    return {"output": _attend(interpret, constant, arguments)}


@partial(jax.jit, static_argnums=(0, 1))
def _attend(interpret: bool, scale: float | None, arguments: Arguments) -> Array:
    _, others = split_band(arguments)

    def attention(arguments: Arguments) -> Array:
        query, key = _scaled(arguments, scale)
        library = partial(_splash, arguments, interpret)
        inputs = query, key, arguments.value
        return first_order_library("splash", library, inputs, _segments(arguments))

    return handle_edge_cases(arguments, attention, _visible(arguments) if others else None)


def _scaled(arguments: Arguments, scale: float | None) -> tuple[Array, Array]:
    """Return query and key with the scaled scores as products.

    A bfloat16 query times a scale that is not a power of two is rounded once more. The rounding
    error is concatenated to it: twice the head width, and exact products.
    """
    query, key = arguments.query, arguments.key
    scaled = arguments.scale * query.astype(jnp.float32)
    rounded = scaled.astype(query.dtype)
    is_power_of_two = scale is not None and abs(frexp(scale)[0]) == 0.5
    if query.dtype == jnp.float32 or is_power_of_two:
        return rounded, key
    rest = (scaled - rounded.astype(jnp.float32)).astype(query.dtype)
    return jnp.concatenate([rounded, rest], -1), jnp.concatenate([key, key], -1)


def _visible(arguments: Arguments) -> Array:
    """Return which queries have a visible key, bool `[..., T, N]`."""
    none = jnp.zeros(arguments.query.shape[:-1], bool)
    return attends_to_nonfinite(
        with_dense_mask(arguments), none, jnp.ones(arguments.key.shape[:-1], bool)
    )


def _padded_lengths(arguments: Arguments) -> tuple[int, int]:
    lengths = arguments.query.shape[-3], arguments.key.shape[-3]
    return tuple(-(-length // LANES) * LANES for length in lengths)


def _splash(
    arguments: Arguments, interpret: bool, inputs: tuple[Array, ...], segments: Segments | None
) -> Array:
    from jax.experimental.pallas.ops.tpu import splash_attention

    query, _, value = inputs
    num_queries, num_heads = query.shape[-3:-1]
    lengths = _padded_lengths(arguments)
    softcap = arguments.scores[0].limit if arguments.scores else None
    rows, columns = (
        next(size for size in (512, 384, 256, 128) if length % size == 0) for length in lengths
    )
    kernel = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([_mask(split_band(arguments)[0], lengths)] * num_heads),
        block_sizes=splash_attention.BlockSizes(
            block_q=rows,
            block_kv=columns,
            block_kv_compute=columns,
            block_q_dkv=rows,
            block_kv_dkv=columns,
            block_kv_dkv_compute=columns,
            block_q_dq=rows,
            block_kv_dq=columns,
        ),
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=softcap,
        interpret=interpret,
    )

    def heads_first(array: Array, length: int) -> Array:  # [..., T, N, H] -> [B, N, T, H]
        array = jnp.moveaxis(array.reshape(-1, *array.shape[-3:]), 2, 1)
        return jnp.pad(array, [(0, 0), (0, 0), (0, length - array.shape[2]), (0, 0)])

    inputs = [heads_first(*pair) for pair in zip(inputs, (*lengths, lengths[1]), strict=True)]
    if segments is not None:
        segments = splash_attention.SegmentIds(*segments)
    # bfloat16 products have one precision.
    precision = arguments.precision if query.dtype == jnp.float32 else None
    with jax.default_matmul_precision(precision):
        output = jax.vmap(kernel)(*inputs, segments)
    output = jnp.moveaxis(output[:, :, :num_queries], 1, 2)
    return output.reshape(*query.shape[:-1], value.shape[-1])


def _mask(band: Band, shape: tuple[int, int]) -> object:
    from jax.experimental.pallas.ops.tpu import splash_attention

    if band == (None, None):
        return splash_attention.FullMask(shape)
    if band == (None, 0):
        return splash_attention.CausalMask(shape)
    return splash_attention.LocalMask(shape, band, offset=0)


def _segments(arguments: Arguments) -> Segments | None:
    """Return the segments of padded queries and keys; None if all keys are visible.

    Masked and padding keys get a segment without queries, masked queries one without keys.
    """
    num_queries, num_keys = arguments.query.shape[-3], arguments.key.shape[-3]
    lengths = _padded_lengths(arguments)
    _, others = split_band(arguments)
    if not others and lengths[1] == num_keys:
        return None
    query, key = jnp.zeros(num_queries, jnp.int32), jnp.zeros(num_keys, jnp.int32)
    for mask in others:
        if isinstance(mask, masks.Segments):
            query, key = mask.query_segments, mask.key_segments
    query, key = (
        jnp.broadcast_to(ids, (*arguments.batch, ids.shape[-1])).reshape(-1, ids.shape[-1])
        for ids in (query, key)
    )
    unused = jnp.maximum(query.max(), key.max()) + 1
    for mask in others:
        if isinstance(mask, masks.Lengths):
            key = jnp.where(_before(mask.lengths, arguments.batch, num_keys), key, unused)
        elif isinstance(mask, masks.QueryLengths):
            inside = _before(mask.lengths, arguments.batch, num_queries)
            query = jnp.where(inside, query, unused + 1)
    return (
        jnp.pad(query, [(0, 0), (0, lengths[0] - num_queries)], mode="edge"),
        jnp.pad(key, [(0, 0), (0, lengths[1] - num_keys)], constant_values=unused),
    )


def _before(lengths: Array, batch: tuple[int, ...], num_tokens: int) -> Array:
    """Return bool `[B, tokens]`, True for tokens before the length."""
    lengths = jnp.broadcast_to(lengths, batch).reshape(-1, 1)
    return jnp.arange(num_tokens, dtype=jnp.int32)[None] < lengths

"""Adapter to `tokamax` (OpenXLA), which has kernels for GPUs and TPUs: cuDNN, Triton and Mosaic.

It is chosen by name only, as "tokamax" or, for one of its implementations, "tokamax:cudnn". It
is imported when it is first used. Its loops and kernels need `check_vma=False` in `jax.shard_map`.

tokamax defines neither the output of a fully masked query nor which outputs a NaN reaches. So it
computes with finite inputs and at least one visible key for each query, and the output and the
gradients of those queries are replaced here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from importlib.util import find_spec
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.first_order import first_order
from attention.primitives.masks import And, Lengths, Mask, QueryLengths, Window, has_heads, to_array
from attention.primitives.numerics import replace_nonfinite, replace_nonfinite_keys
from attention.primitives.scores import BiasArray, PairBias, Softcap

Tree = Any

# The platforms of each implementation in tokamax; None = all.
PLATFORMS = {
    "tokamax": None,
    "tokamax:mosaic": ("cuda", "tpu"),
    "tokamax:triton": ("cuda",),
    "tokamax:cudnn": ("cuda",),
    "tokamax:xla_chunked": None,
    "tokamax:xla": None,
}
# What "tokamax" tries, in this order. Without a kernel, memory still is linear.
ANY = {"cuda": ("mosaic", "triton", "xla_chunked"), "tpu": ("mosaic", "xla_chunked")}


def refusal(arguments: Arguments, platform: str, name: str) -> str | None:
    """Return why this name of `PLATFORMS` cannot compute the arguments there; None if it can."""
    inputs = arguments.query, arguments.key, arguments.value
    dtypes = sorted({str(array.dtype) for array in inputs})
    if (platforms := PLATFORMS[name]) and platform not in platforms:
        return f"it runs on {' and '.join(platforms)}, and the platform is {platform}"
    if find_spec("tokamax") is None:
        return 'tokamax is not installed: pip install "attention-jax[kernels]"'
    if not all(array.size for array in inputs):
        return "an input is empty"
    if dtypes not in (["bfloat16"], ["float32"]):
        return f"its inputs are all float32 or all bfloat16, and these are {', '.join(dtypes)}"
    biases = [*arguments.scores]
    biases = biases[:-1] if biases and isinstance(biases[-1], Softcap) else biases
    if not all(isinstance(score, BiasArray | PairBias) for score in biases):
        return "its only score functions are bias arrays, and one softcap after them"
    if not arguments.counted and any(isinstance(score, BiasArray) for score in biases):
        return "a bias at explicit positions needs a gather"
    lacking = ["dropout"] if arguments.dropout else []
    lacking += ["attention sinks"] if arguments.sinks else []
    lacking += ["tile sizes"] if arguments.tile_sizes else []
    lacking += arguments.returning
    return f"it has no {', '.join(lacking)}" if lacking else None


@contextmanager
def _settings() -> Iterator[None]:
    """Set what tokamax relies on: promotion of dtypes and ranks, and parsed flags of absl.

    In a program that did not parse its flags, tokamax would parse the command line, and fail on
    what it does not know there. Flags that are only marked as parsed have their defaults.
    """
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@_settings()
def attend_by_tokamax(arguments: Arguments, platform: str, name: str) -> dict[str, Array]:
    """Return "output" `[..., T, N, Hv]` for arguments that are not refused.

    Reverse mode of first order is the only derivative. A scale that is an array is multiplied into
    the query, and rounded to its dtype.

    Raises:
        NotImplementedError: by tokamax, for what the implementation cannot compute on this device;
            for derivatives of gradients.
    """
    key, value, nonfinite_keys = arguments.key, arguments.value, arguments.nonfinite_keys
    if nonfinite_keys is None:
        key, value, nonfinite_keys = replace_nonfinite_keys(key, value)
    query, nonfinite_queries = replace_nonfinite(arguments.query)
    scale = arguments.scale
    if isinstance(scale, Array):
        query, scale = (query * scale).astype(query.dtype), 1.0
    options = {
        "implementation": name.partition(":")[2] or ANY.get(platform, "xla_chunked"),
        "precision": jax.lax.Precision[arguments.precision.upper()],
        "scale": float(scale),
    }
    if platform == "cpu":  # JAX cannot lower others of bfloat16 under strict dtype promotion
        options["precision"] = jax.lax.DotAlgorithmPreset.F32_F32_F32
    biases = [score.array for score in arguments.scores if not isinstance(score, Softcap)]
    if len(biases) < len(arguments.scores):
        options["logits_soft_cap"] = arguments.scores[-1].limit
    bias = sum(biases) if biases else None

    allowed = _allowed(arguments)
    visible, rows, keys = _edge_cases(allowed, nonfinite_queries, nonfinite_keys)
    query = _with_nan_gradient(query, rows[..., None])
    key, value = (_with_nan_gradient(array, keys[..., None]) for array in (key, value))
    if bias is not None:
        pairs = allowed & jnp.swapaxes(rows, -1, -2)[..., None]
        pairs = jnp.broadcast_to(pairs, (*pairs.shape[:-1], key.shape[-3])).astype(bias.dtype)
        _, sum_to_bias = jax.vjp(lambda bias: jnp.broadcast_to(bias, pairs.shape), bias)
        bias = _with_nan_gradient(bias, sum_to_bias(pairs)[0] > 0)

    # Residuals of the gradient contain the mask itself, not a dense array.
    without = dict.fromkeys(("query", "key", "value", "scale", "nonfinite_keys"))
    output = first_order(
        name,
        lambda inputs, mask: _call(options, mask, *inputs),
        lambda inputs, mask: jax.vjp(partial(_call, options, mask), *inputs),
        _settings()(lambda pullback, mask, cotangent: pullback(cotangent)),
        (query, key, value, bias),
        replace(arguments, scores=(), **without),
    )
    output = jnp.where(visible[..., None], output, 0)
    return {"output": jnp.where(rows[..., None], jnp.nan, output)}


@jax.custom_jvp
def _with_nan_gradient(array: Array, where: Array) -> Array:
    """Return the array; its gradient is NaN where a flag is True."""
    return array


@_with_nan_gradient.defjvp
def _with_nan_gradient_jvp(primals: Tree, tangents: Tree) -> tuple[Array, Array]:
    return primals[0], tangents[0] * jnp.where(primals[1], jnp.nan, 1)


def _edge_cases(allowed: Array, queries: Array, keys: Array) -> tuple[Array, Array, Array]:
    """Return which queries attend to a key, which to NaN, and the keys of the latter.

    Queries are flags `[..., T, N]` and keys `[..., S, K]`; those given are of non-finite inputs.
    """
    queries, keys = (jnp.swapaxes(x, -1, -2) for x in (queries, keys))

    def spread() -> tuple[Array, Array]:
        of_heads = jnp.repeat(keys, queries.shape[-2] // keys.shape[-2], axis=-2)  # [..., N, S]
        nonfinite = queries[..., None] | of_heads[..., None, :]
        rows = (allowed & nonfinite).any(axis=-1)  # [..., N, T]
        seen = (allowed & rows[..., None]).any(axis=-2)  # [..., N, S|1]
        seen = seen.reshape(*keys.shape[:-1], -1, seen.shape[-1]).any(axis=-2)
        return rows, jnp.broadcast_to(seen, keys.shape)

    # Rarely computed, since it takes as many operations as a small head has products.
    some = queries.any() | keys.any()
    rows, keys = jax.lax.cond(some, spread, lambda: (queries & False, keys & False))
    return tuple(jnp.swapaxes(x, -1, -2) for x in (allowed.any(axis=-1), rows, keys))


def _allowed(pairs: Arguments) -> Array:
    """Return the mask as bool `[..., N|1, T|1, S|1]`."""
    if pairs.mask is None:
        return jnp.ones((1, 1, 1), bool)
    allowed = to_array(pairs.mask, pairs.query_positions, pairs.key_positions)
    return allowed if has_heads(pairs.mask) else allowed[..., None, :, :]


@_settings()
def _call(
    options: Tree, mask: Arguments, query: Array, key: Array, value: Array, bias: Array | None
) -> Array:
    """Call tokamax with one batch axis; `mask` contains the mask and the positions."""
    import tokamax

    batch = query.shape[:-3]
    output = tokamax.dot_product_attention(
        *(array.reshape(-1, *array.shape[-3:]) for array in (query, key, value)),
        bias=None if bias is None else _one_batch_axis(bias, batch),
        **options,
        **_mask_arguments(mask, batch, key.shape[-3]),
    )
    return output.reshape(*query.shape[:-1], value.shape[-1])


def _mask_arguments(pairs: Arguments, batch: tuple[int, ...], num_keys: int) -> dict[str, Any]:
    """Return the mask as arguments of tokamax, in which every query attends to a key.

    Lengths of queries are left out: kernels make a dense mask of them, and the output is set to 0
    anyway. So is a window together with lengths, which can mask all keys of a query.
    """
    if pairs.mask is None:
        return {}
    leaves = _conjuncts(pairs.mask)
    windows = [leaf for leaf in leaves if isinstance(leaf, Window)]
    before = [window.before for window in windows if window.before is not None]
    after = [window.after for window in windows if window.after is not None]
    lengths = [leaf.lengths for leaf in leaves if isinstance(leaf, Lengths)]
    known = all(isinstance(leaf, Window | Lengths | QueryLengths) for leaf in leaves)
    if not (known and pairs.counted) or (lengths and before):
        allowed = _allowed(pairs)
        return {"mask": _one_batch_axis(allowed | ~allowed.any(axis=-1, keepdims=True), batch)}
    words: dict[str, Any] = {"is_causal": 0 in after}
    if before or (after and 0 not in after):
        words["local_window_size"] = min([num_keys, *before]), min([num_keys, *after])
    if lengths:
        shortest = jnp.clip(reduce(jnp.minimum, lengths), 1, num_keys)
        words["key_value_seq_lengths"] = jnp.broadcast_to(shortest, batch).reshape(-1)
    return words


def _conjuncts(mask: Mask) -> list[Mask]:
    return _conjuncts(mask.left) + _conjuncts(mask.right) if isinstance(mask, And) else [mask]


def _one_batch_axis(array: Array, batch: tuple[int, ...]) -> Array:
    """Return `[B|1, N|1, T|1, S|1]` from `[..., N|1, T|1, S|1]`."""
    if prod(array.shape[:-3]) > 1:
        array = jnp.broadcast_to(array, (*batch, *array.shape[-3:]))
    return array.reshape(-1, *array.shape[-3:])

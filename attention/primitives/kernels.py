"""Adapter to `tokamax` (OpenXLA), which has kernels for GPUs and TPUs: cuDNN, Triton and Mosaic.

It is chosen by name only, as implementation "tokamax" or, for one of its own, "tokamax:cudnn". It
is imported when it is first used. Its loops and kernels need `check_vma=False` in `jax.shard_map`.

tokamax defines neither the output of a fully masked query nor which outputs a NaN reaches. So it
computes with finite inputs and at least one visible key for each query, and the output and the
gradients of those queries are replaced here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from importlib.util import find_spec
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.first_order import first_order
from attention.primitives.masks import (
    And,
    Lengths,
    Mask,
    QueryLengths,
    Window,
    has_heads,
    to_array,
)
from attention.primitives.numerics import replace_nonfinite, replace_nonfinite_keys
from attention.primitives.scores import BiasArray, Softcap

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


def refusal(arguments: Arguments, platform: str, name: str = "tokamax") -> str | None:
    """Return why tokamax cannot compute this, in half a sentence; None if it can.

    Args:
        arguments: of `attend`.
        platform: "cpu", "cuda", "rocm" or "tpu".
        name: one of `PLATFORMS`.
    """
    inputs = arguments.query, arguments.key, arguments.value
    dtypes = sorted({str(array.dtype) for array in inputs})
    if (platforms := PLATFORMS[name]) and platform not in platforms:
        return f"it runs on {' and '.join(platforms)}, and the platform is {platform}"
    if find_spec("tokamax") is None:
        return "tokamax is not installed: pip install attention[kernels]"
    if not all(array.size for array in inputs):
        return "an input is empty"
    if dtypes not in (["bfloat16"], ["float32"]):
        return f"its inputs are all float32 or all bfloat16, and these are {', '.join(dtypes)}"
    kinds = [type(score) for score in arguments.scores]
    biases = [BiasArray] * kinds.count(BiasArray)
    if kinds not in (biases, [*biases, Softcap]):
        return "its only score functions are bias arrays, and one softcap after them"
    if biases and not arguments.counted:
        return "a bias at explicit positions needs a gather"
    given = {
        "dropout": arguments.dropout is not None,
        "attention sinks": arguments.sinks,
        "tile sizes": arguments.tile_sizes is not None,
    } | dict.fromkeys(arguments.returning, True)
    lacking = [option for option, value in given.items() if value]
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
def attend_by_tokamax(
    arguments: Arguments, platform: str, name: str = "tokamax"
) -> dict[str, Array]:
    """Return "output" `[..., T, N, Hv]` for arguments that are not refused.

    Reverse mode of first order is the only derivative. A scale that is an array is multiplied into
    the query, and rounded to its dtype.

    Args:
        arguments: of `attend`.
        platform: that the computation is lowered for.
        name: one of `PLATFORMS`.

    Raises:
        NotImplementedError: by tokamax, for what one of its implementations cannot compute on this
            device; for derivatives of gradients.
    """
    query, nonfinite_queries = replace_nonfinite(arguments.query)
    key, value, nonfinite_keys = arguments.key, arguments.value, arguments.nonfinite_keys
    if nonfinite_keys is None:
        key, value, nonfinite_keys = replace_nonfinite_keys(key, value)
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
    biases = [score.array for score in arguments.scores if isinstance(score, BiasArray)]
    if len(biases) < len(arguments.scores):
        options["logits_soft_cap"] = arguments.scores[-1].limit
    # Residuals of the gradient contain the mask itself, not a dense array.
    without = dict.fromkeys(("query", "key", "value", "scale", "nonfinite_keys"))
    constants = replace(arguments, scores=(), **without), nonfinite_queries, nonfinite_keys

    def function(inputs: Tree, constants: Tree) -> Array:
        return _forward(lambda call, *inputs: (call(*inputs), None), options, inputs, constants)[0]

    def forward(inputs: Tree, constants: Tree) -> tuple[Array, Tree]:
        return _forward(jax.vjp, options, inputs, constants)

    inputs = query, key, value, sum(biases) if biases else None
    return {"output": first_order(name, function, forward, _backward, inputs, constants)}


@_settings()
def _forward(
    transform: Callable[..., tuple[Array, Tree]], options: Tree, inputs: Tree, constants: Tree
) -> tuple[Array, Tree]:
    """Return the output and the residuals of `_backward`.

    Args:
        transform: of a function and its arguments, to its result and pullback.
        options: of tokamax, without the mask.
        inputs: finite query, key, value, and a bias or None.
        constants: `_edge_cases`' arguments.
    """
    output, pullback = transform(lambda *inputs: _call(options, constants[0], *inputs), *inputs)
    visible, rows, keys = _edge_cases(*constants)
    output = jnp.where(rows[..., None], jnp.nan, jnp.where(visible[..., None], output, 0))
    return output, (pullback, visible, rows, keys)


@_settings()
def _backward(residuals: Tree, constants: Tree, cotangent: Array) -> Tree:
    """Return gradients: 0 from fully masked queries, NaN of inputs of NaN outputs."""
    pullback, visible, rows, keys = residuals
    *gradients, bias = pullback(jnp.where((visible & ~rows)[..., None], cotangent, 0))
    gradients = [
        jnp.where(where[..., None], jnp.nan, gradient)
        for where, gradient in zip((rows, keys, keys), gradients, strict=True)
    ]
    if bias is not None:
        pairs = _allowed(constants[0]) & jnp.swapaxes(rows, -1, -2)[..., None]
        spread = jnp.broadcast_to(pairs, (*pairs.shape[:-1], keys.shape[-2])).astype(bias.dtype)
        _, sum_to_bias = jax.vjp(lambda bias: jnp.broadcast_to(bias, spread.shape), bias)
        bias = jnp.where(sum_to_bias(spread)[0] > 0, jnp.nan, bias)
    return *gradients, bias


def _edge_cases(
    pairs: Arguments, nonfinite_queries: Array, nonfinite_keys: Array
) -> tuple[Array, Array, Array]:
    """Return which queries attend to a key, which to NaN, and the keys that the latter attend to.

    Args:
        pairs: the mask and positions.
        nonfinite_queries: bool `[..., T, N]`, as the first two results.
        nonfinite_keys: bool `[..., S, K]`, as the last result.
    """
    allowed = _allowed(pairs)
    queries, keys = (jnp.swapaxes(x, -1, -2) for x in (nonfinite_queries, nonfinite_keys))

    def spread() -> tuple[Array, Array]:
        of_heads = jnp.repeat(keys, queries.shape[-2] // keys.shape[-2], axis=-2)  # [..., N, S]
        nonfinite = queries[..., None] | of_heads[..., None, :]
        rows = (allowed & nonfinite).any(axis=-1)  # [..., N, T]
        seen = (allowed & rows[..., None]).any(axis=-2)  # [..., N, S|1]
        seen = seen.reshape(*keys.shape[:-1], -1, seen.shape[-1]).any(axis=-2)
        return rows, jnp.broadcast_to(seen, keys.shape)

    # Rarely computed, since it takes as many operations as a small head has products.
    some = nonfinite_queries.any() | nonfinite_keys.any()
    rows, keys = jax.lax.cond(some, spread, lambda: (queries & False, keys & False))
    return tuple(jnp.swapaxes(x, -1, -2) for x in (allowed.any(axis=-1), rows, keys))


def _allowed(pairs: Arguments) -> Array:
    """Return the mask as bool `[..., N|1, T|1, S|1]`."""
    if pairs.mask is None:
        return jnp.ones((1, 1, 1), bool)
    allowed = to_array(pairs.mask, pairs.query_positions, pairs.key_positions)
    return allowed if has_heads(pairs.mask) else allowed[..., None, :, :]


def _call(
    options: Tree, pairs: Arguments, query: Array, key: Array, value: Array, bias: Array | None
) -> Array:
    """Call tokamax with one batch axis."""
    import tokamax

    batch, num_keys = query.shape[:-3], key.shape[-3]
    output = tokamax.dot_product_attention(
        *(array.reshape(-1, *array.shape[-3:]) for array in (query, key, value)),
        bias=None if bias is None else _one_batch_axis(bias, batch),
        **options,
        **_translated(pairs, batch, num_keys),
    )
    return output.reshape(*query.shape[:-1], value.shape[-1])


def _translated(pairs: Arguments, batch: tuple[int, ...], num_keys: int) -> dict[str, Any]:
    """Return the mask as arguments of tokamax, in which every query attends to a key.

    Lengths of queries are left out: kernels make a dense mask of them, and the output is set to 0
    anyway. So is a window together with lengths, which can mask all keys of a query.
    """
    leaves = [] if pairs.mask is None else _conjuncts(pairs.mask)
    lengths = [leaf.lengths for leaf in leaves if isinstance(leaf, Lengths)]
    bands = [(leaf.before, leaf.after) for leaf in leaves if isinstance(leaf, Window)]
    before, after = ([band[n] for band in bands if band[n] is not None] for n in (0, 1))
    known = all(isinstance(leaf, Window | Lengths | QueryLengths) for leaf in leaves)
    if not (leaves and known and pairs.counted) or (lengths and before):
        if pairs.mask is None:
            return {}
        allowed = _allowed(pairs)
        allowed |= ~allowed.any(axis=-1, keepdims=True)
        return {"mask": _one_batch_axis(allowed, batch)}
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

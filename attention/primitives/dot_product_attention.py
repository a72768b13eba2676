"""`attend` with the arguments of `jax.nn.dot_product_attention` and of flax's `attention_fn`."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from attention.primitives import masks
from attention.primitives.attend import attend
from attention.primitives.choice import one_of
from attention.primitives.dropout import Dropout

# Name of an implementation of jax.nn → name of an implementation of `attend`.
IMPLEMENTATIONS = {"xla": None, "cudnn": "tokamax:cudnn"}


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: Literal["xla", "cudnn"] | None = None,
    return_residual: bool = False,
    dropout_rng: Array | None = None,
    dropout_rate: float = 0.0,
    broadcast_dropout: bool = True,
    deterministic: bool | None = None,
    dtype: DTypeLike | None = None,
    precision: jax.lax.PrecisionLike = None,
    module: Any = None,  # noqa: ANN401 - a module of flax, which the primitives do not import
    qk_attn_weights_einsum: Callable[..., Array] | None = None,
    attn_weights_value_einsum: Callable[..., Array] | None = None,
) -> Any:  # noqa: ANN401 - a union would need a check at each call
    """Compute `attend` for the arguments of `jax.nn.dot_product_attention`.

    It is also an `attention_fn` of the attention modules of flax. `docs/argument_names.md` lists
    the differences: for example, a fully masked query has output 0.

    Args:
        query: `[..., T, N, H]` with any number of batch axes.
        key: `[..., S, K, H]`; K divides N.
        value: `[..., S, K, Hv]`.
        bias: floats that broadcast to `[..., N, T, S]`, added to the scaled products.
        mask: a `masks.Mask`, or bool that broadcasts to `[..., N, T, S]`, True = may attend; if
            `deterministic` is given, as by modules of flax, also numbers.
        scale: factor of the products; 1/√H by default.
        is_causal: whether query t attends to keys 0 to t only, also where T ≠ S.
        query_seq_lengths: integers that broadcast to the batch axes; later queries have output 0.
        key_value_seq_lengths: integers that broadcast to the batch axes; later keys are masked.
        local_window_size: how many keys before and after its position a query attends to.
        implementation: None or "xla" for the default of `attend`, "cudnn" for "tokamax:cudnn".
        return_residual: whether to return the logsumexp of the masked scores too.
        dropout_rng: a random key, required if weights are dropped.
        dropout_rate: probability of dropping a weight, in [0, 1).
        broadcast_dropout: whether all examples drop the same weights; heads never share them.
        deterministic: True switches dropout off.
        dtype: to which query, key and value are cast; by default that to which they promote.
        precision: of the products, as in `attend`.
        module: a module of flax in which to sow the weights before dropout `[..., N, T, S]`.
        qk_attn_weights_einsum: None, as the next one; both are arguments of flax.
        attn_weights_value_einsum: None.

    Returns:
        The output `[..., T, N, Hv]`, or with `return_residual` a pair of it and the logsumexp
        `[..., T, N]`, both in the dtype of the inputs.

    Raises:
        TypeError: a mask that is not bool, and as `attend`.
        ValueError: an unknown implementation, dropout without a key, and as `attend`.
    """
    if implementation is not None:
        one_of("implementation", implementation, [*IMPLEMENTATIONS])
    if qk_attn_weights_einsum is not None or attn_weights_value_einsum is not None:
        raise ValueError("qk_attn_weights_einsum and attn_weights_value_einsum must be None")
    query, key, value = map(jnp.asarray, (query, key, value))
    dtype = jnp.result_type(query, key, value) if dtype is None else dtype
    query, key, value = (array.astype(dtype) for array in (query, key, value))
    # Slices, since `attend` checks the number of axes.
    batch, num_queries, num_keys = query.shape[:-3], query.shape[-3:-2], key.shape[-3:-2]
    weights = (*batch, *query.shape[-2:-1], *num_queries, *num_keys)

    predicates, positions = [masks.causal()] if is_causal else [], None
    if local_window_size is not None:
        before, after = np.broadcast_to(local_window_size, 2).tolist()
        predicates.append(masks.window(before, after))
    if predicates and num_queries != num_keys:
        positions = tuple(np.arange(*size, dtype=np.int32) for size in (num_queries, num_keys))
    if key_value_seq_lengths is not None:
        lengths = _broadcastable("key_value_seq_lengths [...]", key_value_seq_lengths, batch)
        predicates.append(masks.lengths(lengths))
    if query_seq_lengths is not None:
        lengths = _broadcastable("query_seq_lengths [...]", query_seq_lengths, batch)
        predicates.append(masks.lengths(*num_keys, query_lengths=lengths))
    if isinstance(mask, masks.Mask):
        predicates.append(mask)
    elif mask is not None:
        mask = _broadcastable("mask [..., N, T, S]", mask, weights)
        if mask.dtype != bool and deterministic is None:
            raise TypeError(
                f"mask must be bool (True = may attend), got {mask.dtype}: pass bias=array to add "
                "it to the scores, or mask=array.astype(bool) if it contains 1 and 0"
            )
        predicates.append(masks.as_mask(mask.astype(bool)))
    if bias is not None:
        bias = _broadcastable("bias [..., N, T, S]", bias, weights)
    dropout = None
    if dropout_rate != 0 and not deterministic:
        if dropout_rng is None:
            raise ValueError(f"{dropout_rate=} needs dropout_rng, a jax.random.key")
        shared = broadcast_dropout or not batch
        rng = dropout_rng if shared else jax.random.split(dropout_rng, batch)
        dropout = Dropout(rng, dropout_rate)

    returning = ("weights",) * (module is not None) + ("logsumexp",) * return_residual
    results = attend(
        query,
        key,
        value,
        mask=reduce(and_, predicates) if predicates else None,
        bias=bias,
        positions=positions,
        scale=scale,
        dropout=dropout,
        returning=returning,
        precision=precision,
        implementation=IMPLEMENTATIONS.get(implementation),
    )
    output, extras = results if returning else (results, {})
    if module is not None:
        module.sow("intermediates", "attention_weights", extras["weights"].astype(dtype))
    if not return_residual:
        return output
    return output, jnp.swapaxes(extras["logsumexp"], -1, -2).astype(dtype)


def _broadcastable(name: str, given: ArrayLike, shape: Sequence[int]) -> Array:
    """Return an array with as many axes as a shape, each of size 1 or that of the shape."""
    array = jnp.asarray(given)
    sizes = (*(1,) * (len(shape) - array.ndim), *array.shape)
    full = (*(1,) * (array.ndim - len(shape)), *shape)
    if any(ours not in (1, theirs) for ours, theirs in zip(sizes, full, strict=True)):
        raise ValueError(f"{name} must broadcast to {tuple(shape)}, got shape {array.shape}")
    return array.reshape(sizes[len(sizes) - len(shape) :])

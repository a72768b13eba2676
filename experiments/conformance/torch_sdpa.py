"""torch.nn.functional.scaled_dot_product_attention, called through jax.pure_callback."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attention import Dropout
from experiments.conformance.candidate import Candidate

# Without forward mode, which a callback does not support.
SUPPORTS = frozenset(
    {
        *("jit", "gradients", "mask", "scale", "cross", "grouped", "value_width", "leading_axes"),
        *("dropout", "bfloat16", "float16", "float64"),
    }
)


def candidate() -> Candidate:
    """Return the function of the installed package.

    Raises:
        ImportError: the package is not installed.
    """
    import torch  # noqa: F401 - optional package

    name = "torch.nn.functional.scaled_dot_product_attention"
    return Candidate(name, f"torch {version('torch')}", attend, SUPPORTS)


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Array | None = None,
    scale: float | None = None,
    dropout: Dropout | None = None,
) -> Array:
    """Call torch, forward and backward, with the arguments of `attention.attend`."""
    # The random state of torch is global: the jax key seeds it before each call.
    seed = jnp.uint32(0) if dropout is None else jax.random.key_data(dropout.rng)[-1]
    rate = 0.0 if dropout is None else dropout.rate
    output = jax.ShapeDtypeStruct((*query.shape[:-1], value.shape[-1]), query.dtype)

    @jax.custom_vjp
    def run(*inputs: Array) -> Array:
        return jax.pure_callback(_forward(scale, rate), output, *inputs)

    def forward(*inputs: Array) -> tuple[Array, tuple[Array, ...]]:
        return run(*inputs), inputs

    def backward(inputs: tuple[Array, ...], cotangents: Array) -> tuple[Array | None, ...]:
        like = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in inputs[:3]]
        found = jax.pure_callback(_backward(scale, rate), like, cotangents, *inputs)
        return *found, *(None for _ in inputs[3:])

    run.defvjp(forward, backward)
    return run(query, key, value, seed, *(() if mask is None else (mask,)))


def _forward(scale: float | None, rate: float) -> Callable[..., np.ndarray]:
    def call(*inputs: np.ndarray) -> np.ndarray:
        import torch

        with torch.no_grad():
            output, _ = _call(scale, rate, *inputs)
        return _numpy(output, inputs[0].dtype)

    return call


def _backward(scale: float | None, rate: float) -> Callable[..., list[np.ndarray]]:
    def call(cotangents: np.ndarray, *inputs: np.ndarray) -> list[np.ndarray]:
        output, given = _call(scale, rate, *inputs)
        output.backward(_tensor(cotangents).to(output.dtype))
        return [_numpy(tensor.grad, cotangents.dtype) for tensor in given]

    return call


def _call(
    scale: float | None,
    rate: float,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    seed: np.ndarray,
    mask: np.ndarray | None = None,
) -> tuple[Any, list[Any]]:
    """The output `[..., T, N, Hv]` and the tensors of query, key and value."""
    import torch

    torch.manual_seed(int(seed))
    given = [
        _tensor(array).requires_grad_(torch.is_grad_enabled()) for array in (query, key, value)
    ]
    output = torch.nn.functional.scaled_dot_product_attention(
        *(tensor.transpose(-3, -2) for tensor in given),  # torch expects [..., N, T, H]
        attn_mask=None if mask is None else torch.from_numpy(np.array(mask))[..., None, :, :],
        dropout_p=rate,
        scale=scale,
        enable_gqa=query.shape[-2] != key.shape[-2],
    )
    return output.transpose(-3, -2), given


def _tensor(array: np.ndarray) -> Any:  # noqa: ANN401 - torch is optional
    import torch

    array = np.asarray(array)
    if array.dtype == jnp.bfloat16:  # NumPy arrays of bfloat16 are not supported by torch
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _numpy(tensor: Any, dtype: np.dtype) -> np.ndarray:  # noqa: ANN401 - as _tensor returns it
    import torch

    wide = torch.float64 if dtype == np.float64 else torch.float32
    return tensor.detach().to(wide).numpy().astype(dtype)

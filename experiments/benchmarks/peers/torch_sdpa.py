"""torch.nn.functional.scaled_dot_product_attention: a flag for causal, else a bool array.

Benchmarks call it with tensors; conformance calls it through `jax.pure_callback`. FlexAttention is
measured too, for windows and packed rows: compiled, with a block mask.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attention import Dropout
from experiments.benchmarks.cases import WINDOW, Case, Inputs
from experiments.benchmarks.contender import (
    COMMON,
    Candidate,
    Contender,
    Program,
    RefusalError,
)
from experiments.benchmarks.peers.torch_cpu import load_torch

if TYPE_CHECKING:  # optional package
    from torch import Tensor

# `jax.pure_callback` does not support forward mode or second derivatives.
SUPPORTS = COMMON - {"vmap", "jvp", "second_derivatives", "sharding"}
SUPPORTS |= {"scale", "grouped", "value_width", "leading_axes", "dropout"}


def candidates() -> Iterator[Candidate]:
    """Yield the function.

    Raises:
        ModuleNotFoundError: torch is not installed.
    """
    name = "torch.nn.functional.scaled_dot_product_attention"
    yield Candidate(name, _version(), attend, SUPPORTS)


def contenders() -> Iterator[Contender]:
    """Yield the function with its default backend, and FlexAttention.

    Raises:
        ModuleNotFoundError: torch is not installed.
    """
    yield Contender("torch", _version(), partial(_prepare, _scaled_dot_product))
    yield Contender("torch:flex_attention", _version(), _prepare_compiled)


def _version() -> str:
    load_torch()
    return f"torch {version('torch')}"


def _scaled_dot_product(case: Case, device: str) -> Callable[..., "Tensor"]:
    torch = load_torch()
    options = {"is_causal": True} if case.pattern == "causal" else {}
    if case.pattern in ("window", "packed"):
        options = {"attn_mask": torch.from_numpy(case.allowed()).to(device)}
    return partial(torch.nn.functional.scaled_dot_product_attention, **options)


def _flex_attention(case: Case, device: str) -> Callable[..., "Tensor"]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if case.pattern not in ("window", "packed"):
        raise RefusalError("it is compared where scaled_dot_product_attention has no flag")
    torch = load_torch()
    torch.compiler.reset()  # or it compiles no more after a few cases
    segments = case.segments()
    rows = None if segments is None else torch.from_numpy(segments).to(device)

    def allowed(
        batch: "Tensor", head: "Tensor", query: "Tensor", key: "Tensor"
    ) -> "Tensor":  # of positions
        if rows is not None:
            return rows[query] == rows[key]
        return (key <= query) & (query - key < WINDOW)

    mask = create_block_mask(allowed, None, None, case.length, case.length, device=device)
    return partial(torch.compile(flex_attention), block_mask=mask)


def _prepare(
    make: Callable[[Case, str], Callable[..., "Tensor"]], case: Case, inputs: Inputs
) -> Program:
    torch = load_torch()
    on_gpu = jax.default_backend() == "gpu"
    if on_gpu and not torch.cuda.is_available():
        raise RefusalError("torch is installed without support for this GPU")
    device = "cuda" if on_gpu else "cpu"

    def tensor(array: np.ndarray) -> "Tensor":
        heads_first = np.ascontiguousarray(array.swapaxes(1, 2))  # torch expects [B, N, T, H]
        return torch.from_numpy(heads_first).to(device, getattr(torch, case.dtype))

    *given, cotangent = (tensor(array) for array in inputs)
    given = [one.requires_grad_(case.gradient) for one in given]
    attend_to = make(case, device)

    def run() -> tuple["Tensor", ...]:
        found = (attend_to(*given),)
        if case.gradient:
            found += torch.autograd.grad(found[0], given, cotangent)
        if on_gpu:
            torch.cuda.synchronize()
        return found

    def arrays(found: tuple["Tensor", ...]) -> tuple[np.ndarray, ...]:
        return tuple(_numpy(one.swapaxes(1, 2), np.float64) for one in found)

    return Program(run, arrays)


def _prepare_compiled(case: Case, inputs: Inputs) -> Program:
    program = _prepare(_flex_attention, case, inputs)
    program.run()  # compiles
    return program


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
    options = {"scale": scale, "dropout_p": 0.0 if dropout is None else dropout.rate}
    output = jax.ShapeDtypeStruct((*query.shape[:-1], value.shape[-1]), query.dtype)

    @jax.custom_vjp
    def run(*inputs: Array) -> Array:
        return jax.pure_callback(partial(_forward, options), output, *inputs)

    def forward(*inputs: Array) -> tuple[Array, tuple[Array, ...]]:
        return run(*inputs), inputs

    def backward(inputs: tuple[Array, ...], cotangents: Array) -> tuple[Array | None, ...]:
        like = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in inputs[:3]]
        found = jax.pure_callback(partial(_backward, options), like, cotangents, *inputs)
        return *found, *(None for _ in inputs[3:])

    run.defvjp(forward, backward)
    return run(query, key, value, seed, *(() if mask is None else (mask,)))


def _forward(options: dict[str, float | None], *inputs: np.ndarray) -> np.ndarray:
    with load_torch().no_grad():
        output, _ = _call(options, *inputs)
    return _numpy(output, inputs[0].dtype)


def _backward(
    options: dict[str, float | None], cotangents: np.ndarray, *inputs: np.ndarray
) -> list[np.ndarray]:
    output, given = _call(options, *inputs)
    output.backward(_tensor(cotangents).to(output.dtype))
    return [_numpy(tensor.grad, cotangents.dtype) for tensor in given]


def _call(options: dict[str, float | None], *inputs: np.ndarray) -> tuple["Tensor", list["Tensor"]]:
    """Return the output `[..., T, N, Hv]` and the tensors of query, key and value."""
    torch = load_torch()
    *arrays, seed, mask = (*inputs, None) if len(inputs) == 4 else inputs
    torch.manual_seed(int(seed))
    given = [_tensor(array).requires_grad_(torch.is_grad_enabled()) for array in arrays]
    query, key, value = (tensor.transpose(-3, -2) for tensor in given)  # [..., N, T, H]
    if mask is not None:
        options = options | {"attn_mask": torch.from_numpy(np.array(mask))}
    grouped = query.shape[-3] != key.shape[-3]
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, enable_gqa=grouped, **options
    )
    return output.transpose(-3, -2), given


def _tensor(array: np.ndarray) -> "Tensor":
    torch, array = load_torch(), np.asarray(array)
    if array.dtype == jnp.bfloat16:  # NumPy arrays of bfloat16 are not supported by torch
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _numpy(tensor: "Tensor", dtype: np.dtype) -> np.ndarray:
    torch = load_torch()
    wide = torch.float64 if dtype == np.float64 else torch.float32
    return tensor.detach().to(wide).cpu().numpy().astype(dtype)

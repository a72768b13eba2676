"""torch.nn.functional.scaled_dot_product_attention, and FlexAttention for windows and packed rows.

The first has a flag for causal, else it gets a bool array; the second is compiled for a block mask.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from types import ModuleType
from typing import TYPE_CHECKING

import jax
import numpy as np

from experiments.benchmarks.cases import WINDOW, Case
from experiments.benchmarks.contender import Contender, Program, RefusalError
from experiments.processes import num_cores

if TYPE_CHECKING:  # optional package
    from torch import Tensor


def load_torch() -> ModuleType:
    """Return torch, with one thread for each core.

    Raises:
        ModuleNotFoundError: torch is not installed.
    """
    import torch

    torch.set_num_threads(num_cores())
    return torch


def contenders() -> Iterator[Contender]:
    """Yield the function with its default backend, and FlexAttention.

    Raises:
        ModuleNotFoundError: torch is not installed.
    """
    load_torch()
    installed = f"torch {version('torch')}"
    yield Contender("torch", installed, partial(_prepare, _scaled_dot_product))
    yield Contender("torch:flex_attention", installed, partial(_prepare, _flex_attention))


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
    rows = [torch.from_numpy(segments).to(device) for segments in case.segments()]

    def allowed(_: "Tensor", head: "Tensor", query: "Tensor", key: "Tensor") -> "Tensor":
        if rows:
            return rows[0][query] == rows[0][key]
        return (key <= query) & (query - key < WINDOW)

    mask = create_block_mask(allowed, None, None, case.length, case.length, device=device)
    return partial(torch.compile(flex_attention), block_mask=mask)


def _prepare(
    make: Callable[[Case, str], Callable[..., "Tensor"]], case: Case, inputs: np.ndarray
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
        return tuple(one.swapaxes(1, 2).detach().cpu().double().numpy() for one in found)

    run()  # compiles FlexAttention
    return Program(run, arrays)

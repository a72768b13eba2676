"""torch.nn.functional.scaled_dot_product_attention: a flag for causal, else a bool array."""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from experiments.benchmarks.cases import Case, Inputs
from experiments.benchmarks.contender import Contender, Program, RefusalError
from experiments.environment import num_cores


def contenders() -> Iterator[Contender]:
    """What it does if nobody says how.

    Raises:
        ImportError: it is not installed.
    """
    import torch  # noqa: F401 - a peer, which nothing else needs

    yield Contender("torch", f"torch {version('torch')}", _prepare)


def _prepare(case: Case, inputs: Inputs) -> Program:
    import torch

    on_gpu = jax.default_backend() == "gpu"
    if on_gpu and not torch.cuda.is_available():
        raise RefusalError("torch is installed without support for this GPU")
    torch.set_num_threads(num_cores())
    device = "cuda" if on_gpu else "cpu"

    def tensor(array: np.ndarray) -> Any:  # noqa: ANN401 - torch is no requirement of ours
        heads_first = np.ascontiguousarray(array.swapaxes(1, 2))  # [B, N, T, H], as it wants them
        return torch.from_numpy(heads_first).to(device, getattr(torch, case.dtype))

    *given, cotangent = (tensor(array) for array in inputs)
    given = [one.requires_grad_(case.gradient) for one in given]
    keywords = {"is_causal": True} if case.pattern == "causal" else {}
    if case.pattern in ("window", "packed"):
        keywords = {"attn_mask": torch.from_numpy(case.allowed()).to(device)}

    def run() -> tuple[Any, ...]:
        found = (torch.nn.functional.scaled_dot_product_attention(*given, **keywords),)
        if case.gradient:
            found += torch.autograd.grad(found[0], given, cotangent)
        if on_gpu:
            torch.cuda.synchronize()
        return found

    def arrays(found: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
        return tuple(one.detach().to(torch.float64).cpu().numpy().swapaxes(1, 2) for one in found)

    return Program(run, arrays)

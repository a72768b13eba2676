"""Compiler options of experiments."""

from collections.abc import Callable
from typing import Any

import jax

CPU_OPTIONS = {
    "xla_backend_optimization_level": 1,
    # By default, XLA aborts the process if a core waits 40 seconds for the others, as on a busy
    # machine.
    "xla_cpu_collective_call_terminate_timeout_seconds": 24 * 60 * 60,
}


def compiled(
    function: Callable[..., Any],
    *,
    donate: tuple[int, ...] = (),
    **shardings: Any,  # noqa: ANN401 - as in jax.jit
) -> Callable[..., Any]:
    """Return a function under `jax.jit` that compiles fast.

    On a CPU, LLVM's first optimisation level makes programs as fast as those of its third, with the
    same bits, in a sixth less time. It is not used if optimisations are turned off, as in tests.

    Args:
        function: of arrays and pytrees.
        donate: positions of the arguments with memory that is reused.
        shardings: `in_shardings` and `out_shardings` of `jax.jit`.
    """
    options = CPU_OPTIONS if jax.default_backend() == "cpu" else None
    if jax.config.read("jax_disable_most_optimizations"):
        options = None
    return jax.jit(function, donate_argnums=donate, compiler_options=options, **shardings)

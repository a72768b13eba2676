"""How the programs of an experiment are compiled."""

from collections.abc import Callable
from typing import Any

import jax

CPU_OPTIONS = {
    "xla_backend_optimization_level": 1,
    # XLA would end the whole process when a core has waited 40 seconds for the others: no error if
    # the machine is busy with something else.
    "xla_cpu_collective_call_terminate_timeout_seconds": 24 * 60 * 60,
}


def compiled(function: Callable[..., Any], *, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
    """A function under `jax.jit`, compiled soon.

    On a CPU, the first level of LLVM's optimisations makes programs that are as fast as those of
    its third and return the same bits, in a sixth less time. Who compiles without optimisations, as
    the tests do, is not held up by that.

    Args:
        function: of arrays and pytrees.
        donate: places of the arguments whose memory is reused.
    """
    options = CPU_OPTIONS if jax.default_backend() == "cpu" else None
    if jax.config.read("jax_disable_most_optimizations"):
        options = None
    return jax.jit(function, donate_argnums=donate, compiler_options=options)

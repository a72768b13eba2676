"""A profiler trace of some training steps."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import jax

from experiments.errors import UsageError

WARM_UP, TRACED = 10, 5  # steps before the trace, when programs are compiled, and in it


def profiled(train_step: Callable[..., Any], workdir: Path, steps: int) -> Callable[..., Any]:
    """Return `train_step` with a trace of `TRACED` calls in the folder `profile` of a workdir.

    TensorBoard with its profile plugin and Perfetto show the trace.

    Args:
        train_step: the training step.
        workdir: of the run.
        steps: number of calls.

    Raises:
        UsageError: too few calls.
    """
    if steps < WARM_UP + TRACED:
        raise UsageError(f"--profile needs {WARM_UP + TRACED} more steps, and the run has {steps}")
    calls, folder = count(1), str(workdir / "profile")

    def step(*arguments: Any) -> Any:  # noqa: ANN401 - those of `train_step`
        call = next(calls)
        if call == WARM_UP + 1:
            jax.block_until_ready(arguments)  # steps before the first are not in the trace
            jax.profiler.start_trace(folder)
        result = train_step(*arguments)
        if call == WARM_UP + TRACED:
            jax.block_until_ready(result)
            jax.profiler.stop_trace()
        return result

    return step

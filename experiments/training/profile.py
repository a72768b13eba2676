"""A profiler trace of some training steps."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import jax

WARM_UP, TRACED = 10, 5  # steps before the trace, when programs are compiled, and in it


def profiled(train_step: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """Return `train_step`, of which the calls after `WARM_UP` are traced into `folder`.

    TensorBoard with its profile plugin and Perfetto show the trace.
    """
    calls = count(1)

    def step(*arguments: Any) -> Any:  # noqa: ANN401 - those of `train_step`
        call = next(calls)
        if call == WARM_UP + 1:
            jax.block_until_ready(arguments)  # steps before the first are not in the trace
            jax.profiler.start_trace(str(folder))
        result = train_step(*arguments)
        if call == WARM_UP + TRACED:
            jax.block_until_ready(result)
            jax.profiler.stop_trace()
        return result

    return step

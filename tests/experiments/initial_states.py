"""Initial states that are computed operation by operation."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import pytest

from experiments.compilation import compiled
from experiments.training import learner


@contextmanager
def eager_initial_states() -> Iterator[None]:
    """Compute initial states without a program of their own.

    All models share the compiled operations, so it takes a tenth of the time. Tests of
    `--mode=train` and of meshes compile the program.
    """

    def eager(function, **options):
        if function.__name__ != "make_state":
            return compiled(function, **options)
        made = functools.cache(function)
        own = options["out_shardings"]
        # Leaves are copied, because the training step reuses their memory.
        return lambda: jax.device_put(made(), own, may_alias=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner, "compiled", eager)
        yield

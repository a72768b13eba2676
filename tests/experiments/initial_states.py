"""Initial states that are drawn by NumPy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest

from experiments import learner
from experiments.learner import TrainState
from experiments.sharding import compiled


def drawn_parameters(shapes: Any) -> Any:
    """Draw kernels and tables from a normal distribution; scales are 1 and biases are 0."""
    random = np.random.default_rng(0)

    def draw(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        name = jax.tree_util.keystr(path)
        if leaf.ndim < 2 or "'bias'" in name or "'scale'" in name:
            return np.full(leaf.shape, "'scale'" in name, leaf.dtype)
        return (random.normal(size=leaf.shape) / sum(leaf.shape) ** 0.5).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def drawn_state(shapes: TrainState) -> TrainState:
    """Return a state before the first step: the moments and counts of optimizers begin at 0."""
    parameters = drawn_parameters(shapes.parameters)
    return TrainState(
        step=np.int32(0),
        parameters=parameters,
        ema=None if shapes.ema is None else parameters,
        optimizer=jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes.optimizer),
        rng=jax.random.key(0),
    )


@contextmanager
def drawn_initial_states() -> Iterator[None]:
    """Draw initial states by NumPy, which takes a twentieth of the time of the program.

    They are the same for every seed, and rows of padding are drawn too.
    """

    def drawn(function, **options):
        if function.__name__ != "_make_state":
            return compiled(function, **options)
        own = options["out_shardings"]
        # Leaves are copied, because the training step reuses their memory.
        return lambda: jax.device_put(drawn_state(jax.eval_shape(function)), own, may_alias=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner, "compiled", drawn)
        yield

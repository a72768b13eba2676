"""A trace of some steps."""

import jax.numpy as jnp
import pytest
from experiments.training.profile import TRACED, WARM_UP, profiled

from experiments.errors import UsageError


def test_steps_after_the_warm_up_are_traced(tmp_path):
    step = profiled(lambda state, batch: state + batch, tmp_path, WARM_UP + TRACED + 1)
    state = jnp.float32(0)
    for number in range(1, WARM_UP + TRACED + 2):
        assert (tmp_path / "profile").exists() == (number > WARM_UP + TRACED)
        state = step(state, jnp.float32(1))
    assert state == WARM_UP + TRACED + 1
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_a_trace_needs_some_steps(tmp_path):
    with pytest.raises(UsageError, match="--profile needs 15 more steps, and the run has 14"):
        profiled(None, tmp_path, 14)

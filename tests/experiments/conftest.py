"""What the experiments are excused from."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def standard_promotion() -> Iterator[None]:
    """Optax multiplies integer steps with floats, which the strict session would refuse."""
    with jax.numpy_dtype_promotion("standard"):
        yield

"""What the experiments are excused from, and the real data that they may find."""

from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest

from tests.experiments.initial_states import drawn_initial_states

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(autouse=True)
def standard_promotion() -> Iterator[None]:
    """Optax multiplies integer steps with floats, which the strict session would refuse."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(autouse=True)
def keep_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the compiled programs when a sweep would free them: other files of tests share them."""
    monkeypatch.setattr(jax, "clear_caches", lambda: None)


@pytest.fixture(scope="module", autouse=True)
def initial_states() -> Iterator[None]:
    """Compile no program for the initial parameters of each model."""
    with drawn_initial_states():
        yield


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """Finds data that the project does not own, beside the repository, or skips the test."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"the data {name} is not in ../shared/data")
        return path

    return find

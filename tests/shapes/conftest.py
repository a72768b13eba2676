"""Every shape test fails if it compiles a program: tracing alone ends in seconds."""

from collections.abc import Iterator

import jax
import pytest

COMPILED: list[str] = []


def note(event: str, *_: object, **__: object) -> None:
    """Note every program that XLA is asked for, whether it is on disk or not."""
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(note)


@pytest.fixture
def compiled() -> list[str]:
    """One entry for each program that was compiled in this process."""
    return COMPILED


@pytest.fixture(autouse=True)
def compile_nothing(compiled: list[str]) -> Iterator[None]:
    """Fail a test that compiles a program."""
    before = len(compiled)
    yield
    number = len(compiled) - before
    assert not number, f"{number} programs were compiled: trace them, by jax.eval_shape"

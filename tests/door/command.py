"""What a person types at the door."""

import contextlib
import io
from pathlib import Path

import jax
import pytest

import run
from experiments.config import Config
from experiments.workdir import Workdir

REPOSITORY = Path(__file__).resolve().parents[2]
# In parts, as the whole run, on two devices.
TINY = ("--config=configs/toy_translation.py:tiny", "--config.batch.microbatches=2")


def config_of(folder):
    """Return the typed config of a run."""
    return Config.read(Workdir(folder).load_config().to_dict())


def command(place, workdir, *arguments):
    """With a workdir in this place, whose runs share generated data, or in a place of its own."""
    return ["run.py", f"--cache={place / 'cache'}", f"--workdir={place / workdir}", *arguments]


@contextlib.contextmanager
def at_the_door():
    """Where a person stands; and optax multiplies integer steps with floats."""
    before = jax.config.jax_compilation_cache_dir
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        patch.chdir(REPOSITORY)
        yield
    jax.config.update("jax_compilation_cache_dir", before)


def train(place, workdir, *arguments):
    """Trains a run that several tests share, and returns what it printed."""
    output = io.StringIO()
    with at_the_door(), contextlib.redirect_stdout(output):
        assert run.main(command(place, workdir, *arguments)) == 0
    return output.getvalue()

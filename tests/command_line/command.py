"""Command lines of `run.py` for tests."""

import contextlib
import io
import json

import jax
import pytest

import run
from experiments.checkpoint import CheckpointWriter, Progress
from experiments.config import REPOSITORY, Config, load_config
from experiments.registry import TASKS
from experiments.workdir import Workdir
from tests.experiments.initial_states import drawn_initial_states

# On two devices, as the whole run.
TINY = ("--config=configs/toy_translation.py:tiny", "--config.mesh.data=2")


def config_of(folder):
    """Return the typed config of a run."""
    return Config.read(Workdir(folder).load_config().to_dict())


def command(place, workdir, *arguments):
    """Return the arguments of a run in a workdir; all runs of `place` share generated data."""
    return ["run.py", f"--cache={place / 'cache'}", f"--workdir={place / workdir}", *arguments]


@contextlib.contextmanager
def in_repository():
    """Run in the root of the repository, with standard dtype promotion, which optax needs."""
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        patch.chdir(REPOSITORY)
        yield


def make_untrained(place, name, folder=None, **changes):
    """Create a run with initial parameters, in a workdir with the name of its config."""
    config = load_config(f"{name}:tiny")
    config.update_from_flattened_dict(changes)
    workdir = Workdir(place / (folder or name))
    if workdir.config.exists():  # of another test
        return workdir.path
    with in_repository(), drawn_initial_states():
        task = TASKS[config.task].prepare(Config.read(config.to_dict()), place / "cache")
        workdir.save_config(task.config)
        texts = {split: task.splits[split].fingerprint for split in task.known_splits}
        workdir.save_fingerprints(texts)
        task.tokenizers.keep(workdir.path)
        with CheckpointWriter(workdir.checkpoints) as checkpoints:
            checkpoints.save(task.learner.initial_state(), Progress())
    return workdir.path


def train(place, workdir, *arguments):
    """Train a run that several tests share, and return what it printed."""
    output = io.StringIO()
    with in_repository(), contextlib.redirect_stdout(output):
        assert run.main(command(place, workdir, *arguments)) == 0
    return output.getvalue()


def write_measured(folder, scores, **results):
    """Write the files of a run of 20 steps that was measured at its end."""
    known = {"step": 20, "ended": True, "train_steps": 20, "training_seconds": 90.0}
    splits = {"parameters": 7, "splits": {"test": scores}}
    (folder / "results.json").write_text(json.dumps(known | results | splits))
    rows = [{"step": 20, "split": split, "accuracy": 0.25} for split in ("train", "validation")]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

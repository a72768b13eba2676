"""Training in a workdir: what is reported when a run continues, and the timeout of its steps."""

import faulthandler
import signal
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from experiments.training import session
from experiments.training.loop import BEGINNING
from experiments.training.session import fit_in, warn_of_other_bits
from jax.sharding import AbstractMesh

from experiments.config import Config
from experiments.config.train import TrainPart
from experiments.environment import bits_depend_on
from experiments.errors import UsageError
from experiments.interruption import Stopped
from experiments.learner import TrainState
from experiments.sharding import MESH_AXES
from experiments.workdir import Workdir


def test_other_rounding_is_one_sentence(capsys, monkeypatch):
    mesh = AbstractMesh((1, 2, 1, 4), MESH_AXES)
    before = bits_depend_on(mesh)
    warn_of_other_bits(Workdir("run"), before, before)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("NPROC", "97")
    now = bits_depend_on(AbstractMesh((1, 1, 1, 1), MESH_AXES))
    warn_of_other_bits(Workdir("run"), before, now)
    error = capsys.readouterr().err
    changes = f"mesh fsdp=2 tensor=4 before, one device now; cores {before['cores']} before, 97 now"
    assert error == (
        f"run continues with other rounding ({changes}): its bits are not those of an unbroken "
        "run\n"
    )


@pytest.mark.parametrize("patience", [0, 3])
def test_run_killed_before_its_first_checkpoint_may_save_more_often(tmp_path, patience):
    def claim(interval):
        train = {"warmup_steps": 0, "patience": patience}
        train["evaluate_every" if patience else "checkpoint_every"] = interval
        config = Config.read({"task": "translation", "train": train})
        workdir.save_config(config)
        session._check_new(workdir, config.train)

    workdir = Workdir(tmp_path / "run")
    claim(50)
    (workdir.path / "metrics.jsonl").write_text('{"step": 40, "split": "train"}\n')
    claim(10)
    (workdir.path / "metrics.jsonl").write_text('{"step": 60, "split": "train"}\n')
    with pytest.raises(UsageError, match=r"the checkpoints of .* are gone"):
        claim(10)


STATE = TrainState(
    step=np.int32(0), parameters=None, average=None, optimizer=None, lr_scale=None, rng=None
)


def test_newest_checkpoint_is_used_before_the_first_evaluation():
    config = SimpleNamespace(train=TrainPart(patience=2, average=3))
    checkpoints = SimpleNamespace(averaged=lambda newest, number, last: (number, last))
    newest = STATE._replace(step=np.int32(7))
    trained = session.Trained.of(checkpoints, newest, BEGINNING, config)
    assert trained.state == (1, 7) and not trained.ended


def fit_without_steps(folder, monkeypatch, *, fit=None, note=lambda _, found=None: found):
    """Train a run whose model, loop and checkpoints only call `note` with what they do."""
    fit = fit or (lambda *_, **__: (STATE, dict(BEGINNING)))
    checkpoints = SimpleNamespace(
        latest_step=lambda: None,
        wait=lambda: note("wait"),
        averaged=lambda state, number, last: note("average", state),
    )
    monkeypatch.setattr(session, "fit", fit)
    monkeypatch.setattr(session, "_checkpoints", lambda *_: nullcontext(checkpoints))
    config = SimpleNamespace(train=TrainPart(step_timeout=60, sample_maps=True))
    task = SimpleNamespace(
        config=config,
        learner=SimpleNamespace(
            initial_state=lambda parameters: STATE,
            to_use=lambda state: state,
            to_save=lambda state: state,
            batch_reader=len,
            flops=None,
        ),
        sample_maps=lambda state: note("maps", {}),
    )
    return fit_in(Workdir(folder), task, [], {})


@pytest.mark.parametrize("ends", [None, Stopped])
def test_timeout_runs_until_checkpoints_are_written_and_read(ends, tmp_path, monkeypatch):
    timers, timed = [], []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda each, **_: timers.append(each))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", timers.clear)

    def note(name, found=None):
        timed.append((name, timers[-1:]))
        return found

    def fit(*_, **__):
        note("fit")
        if ends:
            raise ends
        return STATE, dict(BEGINNING)

    with pytest.raises(ends) if ends else nullcontext():
        fit_without_steps(tmp_path, monkeypatch, fit=fit, note=note)
    names = ["maps", "fit", "wait", *([] if ends else ["average"])]
    assert timed == [(name, [60]) for name in names] and not timers


@pytest.mark.parametrize("place", ["wait", "average"])
def test_signal_after_the_last_step_stops_the_run(place, tmp_path, monkeypatch):
    def note(name, found=None):
        if name == place:
            signal.raise_signal(signal.SIGTERM)
        return found

    with pytest.raises(Stopped, match="stopped at step 0 of 1,000: the same command"):
        fit_without_steps(tmp_path, monkeypatch, note=note)

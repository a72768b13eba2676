"""The mean of the last checkpoints."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.errors import UsageError
from experiments.training.checkpoint import Checkpoints
from experiments.training.step import TrainState


def state(step):
    parameters = {"weights": jnp.arange(3.0) * step, "bias": jnp.float32(2.0**step)}
    return TrainState(
        step=jnp.int32(step),
        parameters=parameters,
        average=None,
        optimizer={"mean": jnp.float32(step)},
        lr_scale=jnp.float32(1),
        rng=jax.random.key(0),
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    place = tmp_path_factory.mktemp("checkpoints")
    with Checkpoints(place, keep=3) as checkpoints:
        for step in (1, 2, 4, 7):
            checkpoints.save(state(step), {})
    return place


@pytest.mark.parametrize("number, kept", [(1, [7]), (2, [4, 7]), (3, [2, 4, 7]), (4, [2, 4, 7])])
def test_the_mean_is_over_the_newest(saved, number, kept, capsys):
    with Checkpoints(saved, keep=3) as checkpoints:
        averaged = checkpoints.averaged(state(7), number, last=7)
    np.testing.assert_allclose(averaged.parameters["weights"], np.arange(3) * np.mean(kept))
    np.testing.assert_allclose(averaged.parameters["bias"], np.mean(np.exp2(kept)))
    assert int(averaged.step) == 7 and averaged.optimizer["mean"] == 7
    told = capsys.readouterr().err
    assert told.startswith("only 3 of the last 4 checkpoints of ") if number == 4 else not told


def test_the_mean_may_end_before_the_newest(saved):
    with Checkpoints(saved, keep=3) as checkpoints:
        averaged = checkpoints.averaged(state(7), 2, last=4)
    np.testing.assert_allclose(averaged.parameters["weights"], np.arange(3) * np.mean([2, 4]))
    assert int(averaged.step) == 4


@pytest.mark.parametrize("part", ["state", "progress"])
def test_numbers_that_are_not_those_that_were_saved_are_refused(tmp_path, monkeypatch, part):
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        checkpoints.save(state(3), {"losses": [(1, 0.5)]})
        restored, progress = checkpoints.restore(state(0))
        assert (int(restored.step), progress) == (3, {"losses": [[1, 0.5]]})
        read = checkpoints._manager.restore

        def damaged(step, args):
            found = SimpleNamespace(**read(step, args=args))
            if part == "progress":
                found.progress = {**found.progress, "losses": [[1, 0.25]]}
            else:
                weights = found.state.parameters["weights"].at[1].add(1e-3)
                parameters = {**found.state.parameters, "weights": weights}
                found.state = found.state._replace(parameters=parameters)
            return found

        monkeypatch.setattr(checkpoints._manager, "restore", damaged)
        with pytest.raises(UsageError, match=r"3 cannot be read \(it is not what was saved"):
            checkpoints.restore(state(0))


def test_a_disk_that_is_full_is_one_sentence(tmp_path, monkeypatch):
    def save(step, args):
        raise ValueError("RESOURCE_EXHAUSTED: Error writing a file, " + "and why, " * 100)

    with Checkpoints(tmp_path) as checkpoints:
        monkeypatch.setattr(checkpoints._manager, "save", save)
        with pytest.raises(UsageError, match=r"/3 cannot be written \(RESOURCE_EXHAUSTED: .*…\)$"):
            checkpoints.save(state(3), {})


@pytest.mark.parametrize("last, read", [(7, [2, 4]), (4, [4, 2])])
def test_newest_state_is_not_read_again(saved, last, read, monkeypatch):
    steps, original = [], Checkpoints._read
    monkeypatch.setattr(
        Checkpoints,
        "_read",
        lambda self, step, like: steps.append(step) or original(self, step, like),
    )
    with Checkpoints(saved, keep=3) as checkpoints:
        checkpoints.averaged(state(7), 3, last)
    assert steps == read


def test_a_best_that_is_gone_is_named(saved):
    with Checkpoints(saved, keep=3) as checkpoints:  # noqa: SIM117 - the error is the inner's
        with pytest.raises(UsageError, match="5 is the best of its run, and is missing"):
            checkpoints.averaged(state(7), 1, last=5)


def test_two_stay_at_least(tmp_path):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(state(step), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]

"""Checkpoints: complete or absent, damage is found, and the mean of the last ones."""

import pickle
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiments.training import checkpoint, session
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.checkpoint import Checkpoints, digests
from experiments.config.train import TrainPart
from experiments.errors import UsageError
from experiments.learner import TrainState
from experiments.workdir import Workdir

# tensorstore may call back when the read of a damaged array has ended, as in `run.silence_threads`.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


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


def sharding(*spec):
    return NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec(*spec))


def steps_in(place):
    return sorted(path.name for path in place.iterdir())


def flip(path, place, bit=0):
    """Flip one bit of a file; `place` is a share of its length."""
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1 << bit
    path.write_bytes(content)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    place = tmp_path_factory.mktemp("checkpoints")
    with Checkpoints(place, keep=3) as checkpoints:
        for step in (1, 2, 4, 7):
            checkpoints.save(state(step), {"losses": [(step, 0.5)]})
    return place


@pytest.fixture
def two(tmp_path):
    """Checkpoints of steps 1 and 2."""
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(state(step), {"losses": [(step, 0.5)]})
    return tmp_path


def digest_with(shape, dtype, place=None):
    array = np.zeros(shape, dtype)
    if place is not None:
        array[place] = 1
    return digests(jnp.asarray(array))[""]


@pytest.mark.parametrize("dtype", [bool, np.int8, jnp.bfloat16, np.float32])
def test_digest_changes_with_every_element(dtype):
    places = [None, *np.ndindex(3, 5)]
    assert len({digest_with((3, 5), dtype, place) for place in places}) == 16


def test_digest_of_large_array_covers_every_block():
    places = [None, (0, 0), (3, 50_000), (6, 100_002)]
    assert len({digest_with((7, 100_003), np.uint8, place) for place in places}) == 4


@pytest.mark.parametrize("spec", [(), ("data",), (None, "data")])
def test_digest_does_not_depend_on_the_sharding(spec):
    array = jax.random.normal(jax.random.key(0), (6, 10))
    tree = {"a": array, "b": [jax.random.key(1)]}
    placed = {"a": jax.device_put(array, sharding(*spec)), "b": tree["b"]}
    assert digests(placed) == digests(tree)
    assert [*digests(tree)] == ["a", "b/0"]


def test_state_is_restored_onto_another_sharding(tmp_path):
    before = {"weights": jnp.arange(6.0).reshape(2, 3), "bias": jnp.float32(1)}
    with Checkpoints(tmp_path) as checkpoints:
        whole = state(1)._replace(parameters=before)
        checkpoints.save(jax.device_put(whole, sharding()), {})
        like = jax.eval_shape(lambda: whole)
        weights = jax.ShapeDtypeStruct((2, 3), jnp.float32, sharding=sharding("data"))
        like = like._replace(parameters=like.parameters | {"weights": weights})
        restored, _ = checkpoints.restore(like)
    np.testing.assert_array_equal(restored.parameters["weights"], before["weights"])
    assert restored.parameters["weights"].sharding == sharding("data")
    assert restored.parameters["bias"].devices() == {jax.devices()[0]}


def test_memory_of_a_saved_state_may_be_reused(tmp_path):
    step = jax.jit(lambda each: each._replace(step=each.step + 1), donate_argnums=0)
    later = jax.jit(lambda each: jax.tree.map(lambda leaf: leaf * 0 - 1, each), donate_argnums=0)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state(1), {})
        large = {"weights": jax.device_put(jnp.arange(2_000_000.0), sharding("data"))}
        current = step(state(1)._replace(parameters=large))
        checkpoints.save(current, {})
        jax.block_until_ready(later(current.parameters))
        checkpoints.wait()
        shapes = {"weights": jax.ShapeDtypeStruct((2_000_000,), jnp.float32)}
        restored, _ = checkpoints.restore(state(0)._replace(parameters=shapes))
    assert restored.parameters["weights"][-1] == 1_999_999


@pytest.mark.parametrize("number, kept", [(1, [7]), (2, [4, 7]), (3, [2, 4, 7]), (4, [2, 4, 7])])
def test_the_mean_is_over_the_newest(saved, number, kept, capsys):
    with Checkpoints(saved, keep=3) as checkpoints:
        averaged = checkpoints.averaged(state(7), number, last=7)
    np.testing.assert_allclose(averaged.parameters["weights"], np.arange(3) * np.mean(kept))
    np.testing.assert_allclose(averaged.parameters["bias"], np.mean(np.exp2(kept)))
    assert int(averaged.step) == 7 and averaged.optimizer["mean"] == 7
    error = capsys.readouterr().err
    assert error.startswith("only 3 of the last 4 checkpoints of ") if number == 4 else not error


def test_the_mean_may_end_before_the_newest(saved):
    with Checkpoints(saved, keep=3) as checkpoints:
        averaged = checkpoints.averaged(state(7), 2, last=4)
    np.testing.assert_allclose(averaged.parameters["weights"], np.arange(3) * np.mean([2, 4]))
    assert int(averaged.step) == 4


def test_damaged_checkpoint_is_left_out_of_the_mean(two, capsys):
    flip(two / "1" / "progress" / "metadata", 0.5)
    with Checkpoints(two) as checkpoints:
        averaged = checkpoints.averaged(state(2), 2, last=2)
    np.testing.assert_allclose(averaged.parameters["weights"], np.arange(3) * 2)
    assert capsys.readouterr().err.endswith("): the mean is of the others\n")


# After an error, orbax closes the event loop under the reads of other arrays, if they are slower.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_flipped_bit_is_reported_and_the_checkpoint_before_is_read(two, capsys):
    (array,) = (path for path in (two / "2" / "state" / "d").iterdir())
    flip(array, 0.3)
    with Checkpoints(two, read_only=True) as checkpoints:
        restored, progress = checkpoints.restore(state(0))
    assert (int(restored.step), progress) == (1, {"losses": [[1, 0.5]]})
    assert steps_in(two) == ["1", "2"]
    error = capsys.readouterr().err
    assert error.startswith(f"the checkpoint {two / '2'} cannot be read (")
    assert error.endswith("): the one of step 1 is used\n") and error.count("\n") == 1
    with Checkpoints(two) as checkpoints:
        assert int(checkpoints.restore(state(0))[0].step) == 1
        checkpoints.save(state(2), {})
    assert steps_in(two) == ["1", "2", "2.damaged"]


@pytest.mark.parametrize("part", ["digests", "progress"])
def test_other_values_than_those_saved_are_refused(two, part, monkeypatch):
    (two / "1").rename(two / "1.gone")
    with Checkpoints(two) as checkpoints:
        read = checkpoints._reader.restore

        def damaged(step, args):
            found = read(step, args=args)
            if part == "progress":
                found.progress["progress"]["losses"] = [[2, 0.25]]
                return found
            parameters = {**found.state.parameters, "weights": jnp.arange(3.0)}
            return type(found)(**{**found, "state": found.state._replace(parameters=parameters)})

        monkeypatch.setattr(checkpoints._reader, "restore", damaged)
        name = {"digests": "array parameters/weights", "progress": "progress"}[part]
        with pytest.raises(
            UsageError, match=rf"2 cannot be read \(its {name} is not what was saved\), and none"
        ):
            checkpoints.restore(state(0))


def test_model_of_other_shapes_names_files_that_may_have_changed(tmp_path):
    one = TrainState(jnp.int32(1), *[None] * 5)  # of several arrays, orbax would still read others
    shapes = r"an array has shape \(\), but \(2,\) in the model"
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(one, {})
        checkpoints.wait()
        with pytest.raises(UsageError, match=f"{shapes}: config.json or a vocabulary has changed"):
            checkpoints.restore(one._replace(step=jnp.arange(2)))


def test_folder_that_a_kill_left_is_removed(two):
    (two / "3.orbax-checkpoint-tmp-7" / "state").mkdir(parents=True)
    with Checkpoints(two, read_only=True) as checkpoints:
        assert checkpoints.latest_step() == 2
    assert len(steps_in(two)) == 3
    Checkpoints(two)
    assert steps_in(two) == ["1", "2"]


def test_a_disk_that_is_full_is_one_sentence(tmp_path, monkeypatch):
    def save(step, args, force):
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


def test_two_regular_checkpoints_and_the_newest_are_kept(tmp_path):
    with Checkpoints(tmp_path, every=10, keep=2) as checkpoints:
        for step in (10, 20, 23, 30, 33, 34):
            checkpoints.save(state(step), {})
        checkpoints.wait()
        averaged = checkpoints.averaged(state(34), 2, last=30)
        np.testing.assert_allclose(averaged.parameters["weights"], np.arange(3) * 25)
    assert steps_in(tmp_path) == ["20", "30", "33", "34"]


@pytest.mark.parametrize("patience", [0, 3])
def test_best_checkpoint_is_kept_with_patience(tmp_path, patience):
    """The best is the last one of a run that was extended: its step is no regular one."""
    intervals = {"evaluate_every": 4, "checkpoint_every": 4, "average": 1}
    train = TrainPart(warmup_steps=0, patience=patience, **intervals)
    workdir, losses = Workdir(tmp_path), []
    with session._checkpoints(workdir, SimpleNamespace(train=train)) as checkpoints:
        for step in (4, 8, 10, 12, 16, 20):
            losses.append((step, abs(step - 10.0)))
            checkpoints.save(state(step), {"losses": losses})
        checkpoints.wait()
    assert ("10" in steps_in(workdir.checkpoints)) == (patience > 0)


def test_checkpoint_of_the_same_step_is_replaced(two):
    with Checkpoints(two) as checkpoints:
        checkpoints.save(state(2), {"losses": []})
        checkpoints.wait()
        assert checkpoints.restore(state(0))[1] == {"losses": []}


def test_restoring_unpickles_nothing(saved):
    found, active = [], [True]

    def hook(name, arguments):
        if active and name == "pickle.find_class":
            found.append(name)

    sys.addaudithook(hook)  # stays until the process ends
    with Checkpoints(saved, read_only=True) as checkpoints:
        checkpoints.restore(state(0))
    assert not found
    pickle.loads(pickle.dumps(TrainState))
    assert found == ["pickle.find_class"]
    active.clear()


def test_waits_and_reads_are_steps_of_the_timeout(two, monkeypatch):
    begun = []
    monkeypatch.setattr(checkpoint, "step_begins", lambda: begun.append("step"))
    with Checkpoints(two) as checkpoints:
        newest, _ = checkpoints.restore(state(0))
        assert len(begun) == 1
        checkpoints.averaged(newest, 2, last=2)  # reads the checkpoint before the newest
        assert len(begun) == 2
        checkpoints.wait()
        assert len(begun) == 3

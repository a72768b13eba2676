"""Checkpoints: complete or absent, damage is found, and the mean of the last ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.checkpoint import (
    CheckpointWriter,
    Progress,
    digests,
    read_checkpoint,
    read_newest,
    saved_steps,
)
from experiments.errors import UsageError
from experiments.learner import TrainState

# tensorstore may call back when the read of a damaged array has ended.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def state(step):
    parameters = {"weights": jnp.arange(3.0) * step, "bias": jnp.float32(2.0**step)}
    return TrainState(
        step=jnp.int32(step),
        parameters=parameters,
        ema=None,
        optimizer={"mean": jnp.float32(step)},
        rng=jax.random.key(0),
    )


def sharding(*spec):
    return NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec(*spec))


def write(folder, *steps, **options):
    with CheckpointWriter(folder, **options) as checkpoints:
        for step in steps:
            checkpoints.save(state(step), Progress(losses=[[step, 0.5]]))
    return folder


def flip(path, share):
    """Flip one bit of a file, at a share of its length."""
    content = bytearray(path.read_bytes())
    content[int(share * (len(content) - 1))] ^= 1
    path.write_bytes(content)


def digest_with(shape, dtype, position=None):
    array = np.zeros(shape, dtype)
    if position is not None:
        array[position] = 1
    return digests(jnp.asarray(array))[""]


@pytest.mark.parametrize("dtype", [bool, np.int8, jnp.bfloat16])
def test_digest_changes_with_every_element(dtype):
    values = {digest_with((3, 3), dtype, position) for position in [None, *np.ndindex(3, 3)]}
    assert len(values) == 10


@pytest.mark.parametrize("spec", [(), ("data",), (None, "data")])
def test_digest_does_not_depend_on_the_sharding(spec):
    array = jax.random.normal(jax.random.key(0), (6, 10))
    tree = {"a": array, "b": [jax.random.key(1)]}
    assert digests(tree | {"a": jax.device_put(array, sharding(*spec))}) == digests(tree)
    assert [*digests(tree)] == ["a", "b/0"]


def test_state_is_restored_onto_another_sharding(tmp_path):
    parameters = {"weights": jnp.arange(6.0).reshape(2, 3), "bias": jnp.float32(1)}
    whole = state(1)._replace(parameters=parameters)
    with CheckpointWriter(tmp_path) as checkpoints:
        checkpoints.save(jax.device_put(whole, sharding()), Progress())
    weights = jax.ShapeDtypeStruct((2, 3), jnp.float32, sharding=sharding("data"))
    like = whole._replace(parameters=parameters | {"weights": weights})
    restored, _ = read_newest(tmp_path, like)
    assert digests(restored) == digests(whole)
    assert restored.parameters["weights"].sharding == sharding("data")


def test_memory_of_a_saved_state_may_be_reused(tmp_path):
    clear = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0 - 1, tree), donate_argnums=0)
    large = {"weights": jax.device_put(jnp.arange(2_000_000.0), sharding("data"))}
    with CheckpointWriter(tmp_path) as checkpoints:
        checkpoints.save(state(1)._replace(parameters=large), Progress())
        checkpoints.save(state(2)._replace(parameters=large), Progress())
        jax.block_until_ready(clear(large))
    zeros = {"weights": jnp.zeros(2_000_000)}
    restored, _ = read_checkpoint(tmp_path, 2, state(0)._replace(parameters=zeros))
    assert restored.parameters["weights"][-1] == 1_999_999


def test_flipped_bit_is_reported_and_the_checkpoint_before_is_read(tmp_path, capsys):
    write(tmp_path, 1, 2)
    (array,) = (tmp_path / "2" / "state" / "d").iterdir()
    flip(array, 0.3)
    restored, progress = read_newest(tmp_path, state(0))
    assert (int(restored.step), progress) == (1, Progress(losses=[[1, 0.5]]))
    error = capsys.readouterr().err
    assert error.startswith(f"the checkpoint {tmp_path / '2'} cannot be read (")
    assert error.endswith("): the one of step 1 is used\n") and error.count("\n") == 1
    assert saved_steps(tmp_path) == [1, 2]
    read_newest(tmp_path, state(0), set_aside=True)
    assert saved_steps(write(tmp_path, 2)) == [1, 2] and (tmp_path / "2.damaged").is_dir()


def test_readable_values_other_than_those_saved_are_refused(tmp_path, capsys):
    write(tmp_path, 1, 2)
    progress = tmp_path / "2" / "progress" / "metadata"
    progress.write_text(progress.read_text().replace("0.5", "0.25"))
    assert read_newest(tmp_path, state(0))[0].step == 1
    assert "(its progress is not what was saved)" in capsys.readouterr().err
    (tmp_path / "1" / "state").rename(tmp_path / "first")
    (tmp_path / "2" / "state").rename(tmp_path / "1" / "state")
    with pytest.raises(UsageError, match=r"2 cannot be read .*, and none before it can: choose"):
        read_newest(tmp_path, state(0))
    with pytest.raises(UsageError, match=r"\(its array optimizer/mean is not what was saved\)"):
        read_checkpoint(tmp_path, 1, state(0))


def test_folder_that_a_kill_left_is_removed(tmp_path):
    write(tmp_path, 1)
    (tmp_path / "2.orbax-checkpoint-tmp-7" / "state").mkdir(parents=True)
    assert read_newest(tmp_path, state(0))[0].step == 1
    write(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


def test_newest_regular_and_best_checkpoints_are_kept(tmp_path):
    write(tmp_path, 10, 20, 23, 30, 33, 34, every=10, keep=2)
    assert saved_steps(tmp_path) == [20, 30, 33, 34]
    with CheckpointWriter(tmp_path, every=10, keep=1) as checkpoints:
        for step in (40, 50, 60):
            checkpoints.save(state(step), Progress(), best=20)
    assert saved_steps(tmp_path) == [20, 50, 60]

"""Meshes of devices: names of axes to shardings, refusals, and the same results on every mesh."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from experiments import sharding
from experiments.config.train import MeshPart
from experiments.data.batches import Batches, FiniteBatches, Rows
from experiments.errors import UsageError
from experiments.sharding import (
    TABLE,
    accumulated,
    batch_reader,
    constrain,
    make_mesh,
    padded_shape,
    place_rows,
    rows_of_each,
    shardings,
    spec,
)

CUBE = AbstractMesh((2, 2, 1, 2), sharding.MESH_AXES)  # data, fsdp, sequence, tensor
P = PartitionSpec


def test_devices_left_are_data_parallel():
    assert dict(make_mesh(MeshPart()).shape) == {"data": 2, "fsdp": 1, "sequence": 1, "tensor": 1}
    assert make_mesh(MeshPart(tensor=2)).shape["data"] == 1
    assert make_mesh(MeshPart(data=1)).size == 1


@pytest.mark.parametrize(
    ("devices", "sizes", "message"),
    [
        (2, {"fsdp": 3}, "fsdp=3 takes 3 devices, .* here is 2: --config.mesh.fsdp=1 takes one"),
        (2, {"data": 2, "tensor": 2}, "mesh.data=2, mesh.tensor=2 takes 4 devices, and .* is 2"),
        (8, {"fsdp": 3}, "mesh.fsdp=3 takes a multiple of 3 devices, .* is 8: set mesh.data"),
    ],
)
def test_a_mesh_that_the_devices_do_not_fill_is_refused(devices, sizes, message, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    with pytest.raises(UsageError, match=message):
        make_mesh(MeshPart(**sizes))


@pytest.mark.parametrize(
    ("names", "shape", "expected"),
    [
        (("embed", "heads", "head"), (6, 4, 3), P(("fsdp",), ("tensor",), None)),
        (("layers", "hidden", "embed"), (3, 8, 6), P(None, ("tensor",), ("fsdp",))),
        # As in a checkpoint.
        (("vocab", "embed"), (7, 6), P(None, ("fsdp",))),
        (("embed", "kv_heads", "head"), (6, 1, 3), P(("fsdp",), None, None)),
        # Without an axis for "fsdp", another that it divides.
        (("heads", "head"), (4, 6), P(("tensor",), ("fsdp",))),
        (("recurrent", "hidden"), (4, 16), P(("fsdp",), ("tensor",))),
        (("hidden",), (8,), P(("tensor", "fsdp"))),
        (("layers", None), (2, 3), P(None, None)),
    ],
)
def test_names_of_axes_decide_the_sharding_of_parameters(names, shape, expected):
    assert spec(names, shape, CUBE, "kernel") == expected


def test_a_size_that_the_mesh_does_not_divide_is_refused():
    message = r"decoder.kernel: its axis 'heads' has size 3, not divisible by mesh.tensor=2"
    with pytest.raises(UsageError, match=message):
        spec(("embed", "heads"), (6, 3), CUBE, "decoder.kernel")


def test_a_mesh_axis_for_two_axes_of_a_parameter_is_refused(monkeypatch):
    monkeypatch.setitem(TABLE, "head", "tensor")
    with pytest.raises(UsageError, match=r"bias: two of its axes heads, head use mesh.tensor"):
        spec(("heads", "head"), (4, 6), CUBE, "bias")


def test_an_unknown_axis_in_the_table_is_refused(monkeypatch):
    monkeypatch.setitem(TABLE, "embed", "fdsp")
    with pytest.raises(UsageError, match=r"TABLE\['embed'\] must be one of data.*mean 'fsdp'"):
        spec(("embed",), (6,), CUBE, "scale")


def test_parameters_are_named_in_errors_and_other_arrays_are_replicated():
    mesh = make_mesh(MeshPart(tensor=2))
    state = {"layer": {"kernel": nnx.Param(jnp.ones((2, 3)), axes=("embed", "hidden"))}}
    with pytest.raises(UsageError, match=r"layer.kernel: its axis 'hidden' has size 3"):
        shardings(state, mesh)
    assert shardings({"step": jnp.int32(0)}, mesh)["step"].is_fully_replicated


def test_tables_are_padded_until_the_mesh_divides_their_rows():
    assert padded_shape(("vocab", "embed"), (7, 3), CUBE) == (8, 3)
    assert padded_shape(("embed", "vocab"), (3, 8), CUBE) == (3, 8)
    assert padded_shape(("hidden", "positions"), (3, 7), CUBE) == (3, 7)  # refused, and not sharded


def test_the_batch_takes_the_devices_that_shard_parameters():
    mesh, found = make_mesh(MeshPart(fsdp=2)), []

    @jax.jit
    def sharded(array):
        array = constrain(mesh, array, ("batch", "sequence", "embed"))
        jax.debug.inspect_array_sharding(array, callback=found.append)
        return array

    sharded(jnp.ones((4, 3, 6)))
    assert found[0].is_equivalent_to(NamedSharding(mesh, P("fsdp")), 3)


def drawn(parameter, rows, key):
    """Sums of the rows, and what a part drew by chance."""
    return {"rows": parameter * jnp.sum(rows), "chance": jax.random.uniform(key)}


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_a_batch_add_up_the_same_on_every_mesh(parts):
    rows, key = jnp.arange(7.0)[:, None], jax.random.key(0)
    chance = sum(jax.random.uniform(each) for each in jax.random.split(key, parts))
    for data in (1, 2):
        mesh = make_mesh(MeshPart(data=data))
        program = jax.jit(lambda *given, mesh=mesh: accumulated(drawn, *given, parts, mesh))
        found = program(jnp.float32(3), rows, key)
        assert found["rows"] == 3 * 21
        np.testing.assert_allclose(found["chance"], chance, rtol=1e-6)


def test_row_r_is_in_part_r_modulo_the_parts():
    """So that padding changes the part of no row."""
    mesh, seen = make_mesh(MeshPart(data=1)), []

    def part(parameter, rows, key):
        jax.debug.callback(lambda rows: seen.append(rows.tolist()), rows)
        return jnp.sum(rows)

    accumulated(part, None, jnp.arange(5), jax.random.key(0), 2, mesh)
    assert seen == [[0, 2, 4], [1, 3, 0]]


def test_one_part_is_the_batch_as_it_is():
    key, mesh = jax.random.key(0), make_mesh(MeshPart(data=1))
    found = accumulated(drawn, jnp.float32(1), jnp.ones((5, 1)), key, 1, mesh)
    assert found == {"rows": 5, "chance": jax.random.uniform(key)}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["meshes", "tasks"])
def test_eight_devices_agree_in_every_arrangement(what, tmp_path):
    """Loss, bytes of the state, and no array that is gathered whole to be sharded otherwise."""
    command = [sys.executable, "-m", "tests.experiments.training.meshes", what, str(tmp_path)]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu"}
    found = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=3_000, check=False
    )
    assert found.returncode == 0, found.stderr[-2_000:]
    assert "Involuntary full rematerialization" not in found.stderr


@pytest.mark.parametrize(
    ("environment", "number"),
    [
        ({}, 3),
        ({"JAX_NUM_CPU_DEVICES": "2"}, 2),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=5"}, 5),
    ],
)
def test_cores_are_devices_unless_the_environment_says_how_many(environment, number):
    code = (
        "import jax; from experiments.sharding import cores_as_devices; "
        "cores_as_devices(3); print(jax.device_count())"
    )
    clean = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment = {**clean, "JAX_PLATFORMS": "cpu", **environment}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True
    )
    assert int(said.stdout) == number


@pytest.mark.parametrize("number", [1, 6, 7, 13])
def test_each_process_reads_the_rows_of_its_devices(number, monkeypatch):
    """Each device of the mesh is that of a process; the last rows may be padding."""
    batch, mesh, multiple = np.arange(1, 3 * number + 1).reshape(-1, 3), make_mesh(MeshPart()), 3
    of_all, read = NamedSharding.addressable_devices_indices_map, []

    def rows(part):
        read.append(part)
        return {"found": batch[part]}

    def placed():
        return place_rows(Rows(number, rows), mesh, multiple=multiple)["found"]

    def own(shape, sharding, callback):
        (index,) = sharding.addressable_devices_indices_map(shape).values()
        assert shape == (padded, 3)
        return callback(index)

    padded, expected = -(-number // 6) * 6, np.asarray(placed())
    np.testing.assert_array_equal(expected[:number], batch)
    assert expected.shape == (padded, 3) and not expected[number:].any()
    assert read == [slice(0, number)]  # once for both devices
    monkeypatch.setattr(jax, "make_array_from_callback", own)
    for process, device in enumerate(mesh.devices.flat):
        monkeypatch.setattr(
            NamedSharding,
            "addressable_devices_indices_map",
            lambda self, shape, device=device: {device: of_all(self, shape)[device]},
        )
        first = process * padded // 2
        np.testing.assert_array_equal(placed(), expected[first : first + padded // 2])
        last = min(number, first + padded // 2)
        assert read[-1] == slice(min(first, number - 1), last)


@pytest.mark.parametrize(
    ("sizes", "owned", "runs"),
    [
        ((2, 4, 1, 1), (0, 1, 4, 5), [slice(0, 4), slice(8, 12)]),
        ((2, 4, 1, 1), (2, 3, 7), [slice(4, 8), slice(13, 14)]),  # the last ones are padding
        ((2, 2, 2, 1), (0, 1, 4, 5), [slice(0, 4), slice(8, 12)]),  # two devices have equal rows
        ((2, 2, 2, 1), (2, 6), [slice(4, 8), slice(12, 14)]),
        ((2, 4, 1, 1), (6, 7), [slice(12, 14)]),
    ],
)
def test_a_process_reads_no_rows_between_those_of_its_devices(sizes, owned, runs, monkeypatch):
    """Fourteen rows and two of padding on eight devices, some of which are those of a process."""
    batch, mesh, read = np.arange(1, 43).reshape(14, 3), AbstractMesh(sizes, sharding.MESH_AXES), []
    parts = sizes[0] * sizes[1]
    size = 16 // parts
    own = {}
    for device in owned:
        data, fsdp, *_ = np.unravel_index(device, sizes)
        start = int(data * sizes[1] + fsdp) * size
        own[device] = (slice(start, start + size),)

    def rows(part):
        read.append(part)
        return batch[part]

    def place(shape, _, callback):
        assert shape == (16, 3)
        return {device: callback((*index, slice(None))) for device, index in own.items()}

    monkeypatch.setattr(jax, "make_array_from_callback", place)
    monkeypatch.setattr(
        NamedSharding, "addressable_devices_indices_map", lambda self, shape: own, raising=True
    )
    found = place_rows(Rows(14, rows), mesh)
    padded = np.concatenate([batch, np.zeros((2, 3), int)])
    for device, (index,) in own.items():
        np.testing.assert_array_equal(found[device], padded[index])
    assert read == runs


class Numbers(FiniteBatches):
    """Two batches of two rows."""

    def __len__(self):
        return 2

    def rows(self, number):
        if number >= 2:
            raise IndexError
        return Rows(2, lambda part: np.array([number, 10 + number])[part])


class Negative(Numbers):
    """Changes the batches after they are read."""

    def __getitem__(self, number):
        return -super().__getitem__(number)


@pytest.mark.parametrize(
    ("batches", "sign"),
    [(Numbers(), 1), (Negative(), -1), ([*Numbers()], 1), ((each for each in Numbers()), 1)],
    ids=["rows", "overridden", "list", "generator"],
)
def test_rows_are_those_of_the_batches(batches, sign):
    if isinstance(batches, Batches | list):
        batch, num_rows = batch_reader(batches, make_mesh(MeshPart()))(1)
        assert (batch.tolist(), num_rows) == ([sign, sign * 11], 2)
    found = [(rows.number, rows.read(slice(0, 2)).tolist()) for rows in rows_of_each(batches)]
    assert found == [(2, [0, 10 * sign]), (2, [sign, 11 * sign])]


@pytest.mark.parametrize("others", [(2,), ()])
def test_arrays_of_different_numbers_of_rows_are_refused(others):
    batch = {"inputs": np.zeros((3, 5)), "labels": np.zeros(others)}
    message = r"equally many rows, got shapes .*'inputs'\W+\(3, 5\)"
    with pytest.raises(UsageError, match=message):
        batch_reader([batch], make_mesh(MeshPart()))(0)
    with pytest.raises(UsageError, match=message):
        next(rows_of_each([batch]))

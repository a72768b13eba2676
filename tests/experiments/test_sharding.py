"""Meshes of devices: names of axes to shardings, refusals, and the same results on every mesh."""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from experiments import sharding
from experiments.config.parts import MeshPart
from experiments.data.pipeline import Rows
from experiments.errors import UsageError
from experiments.sharding import (
    accumulated,
    constrain,
    make_mesh,
    place_rows,
    read_batch,
    row_report,
    rows_of_each,
    shardings,
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
        (2, {"fsdp": 3}, "fsdp=3 takes 3 devices or .* here is 2"),
        (2, {"data": 2, "tensor": 2}, "mesh.data=2, mesh.tensor=2 takes 4 devices or .* is 2"),
        (8, {"fsdp": 3}, "mesh.fsdp=3 takes 3 devices or a multiple .* is 8: .* set mesh.data"),
    ],
)
def test_mesh_that_the_devices_do_not_fill_is_refused(devices, sizes, message, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    with pytest.raises(UsageError, match=message):
        make_mesh(MeshPart(**sizes))


@pytest.mark.parametrize(
    ("tokens", "microbatches", "size"), [(96, 1, 2), (95, 1, 1), (96, 2, 1), (192, 2, 2), (1, 1, 1)]
)
def test_no_device_without_a_row_unless_the_mesh_is_given(tokens, microbatches, size):
    config = SimpleNamespace(
        mesh=MeshPart(),
        model=SimpleNamespace(max_length=48),
        batch=SimpleNamespace(tokens=tokens, row_length=0, microbatches=microbatches),
    )
    assert make_mesh(MeshPart(), config).size == size
    assert make_mesh(MeshPart(data=2), config).size == 2


def test_devices_without_rows_and_padded_rows_are_reported():
    config = SimpleNamespace(mesh=MeshPart())
    one, two = (make_mesh(MeshPart(data=number)) for number in (1, 2))
    assert row_report(one, config, 28, 28) == "1 of 2 devices: batches have 28 rows"
    assert row_report(two, config, 7, 8) == "2 devices: batches of 7 rows are padded to 8"
    assert row_report(two, config, 28, 28) == ""


@pytest.mark.parametrize(
    ("names", "shape", "expected"),
    [
        (("embed", "heads", "head"), (6, 4, 3), P(("fsdp",), ("tensor",), None)),
        (("layers", "hidden", "embed"), (3, 8, 6), P(None, ("tensor",), ("fsdp",))),
        (("embed", "kv_heads", "head"), (6, 1, 3), P(("fsdp",), None, None)),
        (("vocab", "embed"), (8, 6), P(("tensor",), ("fsdp",))),
        (("vocab", "embed"), (7, 6), P(None, ("fsdp",))),  # a vocabulary may have any size
    ],
)
def test_names_of_axes_decide_the_sharding_of_parameters(names, shape, expected):
    kernel = nnx.Param(jax.ShapeDtypeStruct(shape, jnp.float32), axes=names)
    assert shardings({"kernel": kernel}, CUBE)["kernel"].get_value().spec == expected


def test_size_that_the_mesh_does_not_divide_is_refused_with_the_name_of_the_parameter():
    mesh = make_mesh(MeshPart(tensor=2))
    state = {"layer": {"kernel": nnx.Param(jnp.ones((2, 3)), axes=("embed", "hidden"))}}
    message = r"layer.kernel: its axis 'hidden' has size 3, not divisible by mesh.tensor=2"
    with pytest.raises(UsageError, match=message):
        shardings(state, mesh)
    assert shardings({"step": jnp.int32(0)}, mesh)["step"].is_fully_replicated


def test_batch_takes_the_devices_that_shard_parameters():
    mesh, seen = make_mesh(MeshPart(fsdp=2)), []

    @jax.jit
    def sharded(array):
        array = constrain(mesh, array, ("batch", "sequence", "embed"))
        jax.debug.inspect_array_sharding(array, callback=seen.append)
        return array

    sharded(jnp.ones((4, 3, 6)))
    assert seen[0].is_equivalent_to(NamedSharding(mesh, P("fsdp")), 3)


def drawn(rows, key):
    """Sums of the rows, and what a part drew by chance."""
    return {"rows": jnp.sum(rows), "chance": jax.random.uniform(key)}


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_a_batch_add_up_the_same_on_every_mesh(parts):
    rows, key = jnp.arange(7.0)[:, None], jax.random.key(0)
    chance = sum(jax.random.uniform(each) for each in jax.random.split(key, parts))
    for data in (1, 2):
        mesh = make_mesh(MeshPart(data=data))
        program = jax.jit(lambda *given, mesh=mesh: accumulated(drawn, *given, parts, mesh))
        sums = program(rows, key)
        assert sums["rows"] == 21
        np.testing.assert_allclose(sums["chance"], chance, rtol=1e-6)


def test_row_r_is_in_part_r_modulo_the_parts():
    """So that padding changes the part of no row."""
    mesh, seen = make_mesh(MeshPart(data=1)), []

    def part(rows, key):
        jax.debug.callback(lambda rows: seen.append(rows.tolist()), rows)
        return jnp.sum(rows)

    accumulated(part, jnp.arange(5), jax.random.key(0), 2, mesh)
    assert seen == [[0, 2, 4], [1, 3, 0]]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["meshes", "tasks"])
def test_eight_devices_agree_in_every_arrangement(what, tmp_path):
    """Loss, bytes of the state, and no array that is gathered whole to be sharded otherwise."""
    command = [sys.executable, "-m", "tests.experiments.meshes", what, str(tmp_path)]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=3_000, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "Involuntary full rematerialization" not in done.stderr


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
        "import jax; from experiments.processes import cores_as_devices; "
        "cores_as_devices(3); print(jax.device_count())"
    )
    clean = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment = {**clean, "JAX_PLATFORMS": "cpu", **environment}
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert int(printed) == number


@pytest.mark.parametrize("number", [1, 6, 7, 13])
def test_each_process_reads_the_rows_of_its_devices(number, monkeypatch):
    """Each device of the mesh is that of a process; the last rows may be padding."""
    batch, mesh = np.arange(1, 3 * number + 1).reshape(-1, 3), make_mesh(MeshPart())
    of_all, read = NamedSharding.addressable_devices_indices_map, []

    def placed():
        rows = Rows(number, lambda part: read.append(part) or {"inputs": batch[part]})
        return place_rows(rows, mesh, multiple=3)["inputs"]

    padded, expected = -(-number // 6) * 6, np.asarray(placed())
    np.testing.assert_array_equal(expected[:number], batch)
    assert expected.shape == (padded, 3) and not expected[number:].any()
    assert read == [slice(0, number)]  # once for both devices
    monkeypatch.setattr(jax, "make_array_from_process_local_data", lambda _, local, shape: local)
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


def test_batches_without_rows_are_read_whole():
    batches, mesh = [np.array([number, 10 + number]) for number in range(2)], make_mesh(MeshPart())
    batch, num_rows = read_batch(batches, mesh, 1, 1)
    assert (batch.tolist(), num_rows) == ([1, 11], 2)
    rows = [each.read(slice(0, 2)).tolist() for each in rows_of_each(iter(batches))]
    assert rows == [[0, 10], [1, 11]]
    with pytest.raises(AssertionError, match="shape"):
        read_batch([{"inputs": np.zeros((3, 5)), "labels": np.zeros(2)}], mesh, 1, 0)

"""Several processes that train one model: start, agreement, and the process that writes."""

import os
import re
import shutil
import socket
import sys
import time
import traceback
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from uuid import uuid4

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.errors import UsageError
from experiments.files import PART
from experiments.workdir import Workdir

Tree = TypeVar("Tree")
START_SECONDS = 300  # in which all processes must have started
HEARTBEAT_SECONDS = 10  # without a sign of life after which a process is lost
# Variables of SLURM and Open MPI: the number of processes.
NUM_TASKS_VARIABLES = "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"
LOST = re.compile("gloo|nccl|connection", re.IGNORECASE)  # in errors after a process has ended
NAMED_SECONDS = 15  # in which jax ends a process that has lost another one, with its number
LOCAL = "localhost", "127.0.0.1", "[::1]"


def start_processes(
    coordinator: str | None, num_processes: int | None, process_id: int | None
) -> None:
    """Connect this process with the others of its run; before jax uses a device.

    Without arguments, jax finds the processes of SLURM or Open MPI.

    Args:
        coordinator: HOST:PORT, where process 0 listens.
        num_processes: of the run; 1 for this process alone, whatever launcher started it.
        process_id: from 0.

    Raises:
        UsageError: the port is in use, or jax cannot find the processes of a launcher.
    """
    is_launched = any(int(os.environ.get(name, 1)) > 1 for name in NUM_TASKS_VARIABLES)
    if num_processes == 1 or (coordinator is None and not is_launched):
        return
    if process_id == 0:
        _check_port(coordinator)
    # `interruption` has the signals: this service would replace its handler of SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            cluster_detection_method="deactivate" if coordinator else None,
            initialization_timeout=START_SECONDS,  # after it, jax aborts the process
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise UsageError(
            f"jax does not find the other processes ({text}): give --coordinator, --num_processes "
            "and --process_id, or --num_processes=1 for this process alone"
        ) from error
    if jax.process_index():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - as long as the process runs


def cores_per_process(cores: int, coordinator: str | None, num_processes: int | None) -> int:
    """Return the number of cores that each process of this machine computes on.

    Launchers bind processes to cores. Processes with a coordinator on this very machine share them.
    """
    if coordinator is None or coordinator.rpartition(":")[0] not in LOCAL:
        return cores
    return max(1, cores // (num_processes or 1))


def any_process(flag: bool) -> bool:
    """Return whether a flag is set in any process; all have to call it, while no step runs."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(np.array(flag)).any())


def flags_array(flags: Sequence[bool], mesh: Mesh) -> Array:
    """Return flags, bool `[devices, flags]`, one row for each device, set by its process."""
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    own = np.array([flags])
    return jax.make_array_from_callback((mesh.size, len(flags)), sharding, lambda _: own)


def gather_to_host(tree: Tree) -> Tree:
    """Gather arrays that are sharded over processes, as NumPy arrays in each of them."""

    def gather(leaf: Any) -> Any:  # noqa: ANN401 - a leaf of any pytree
        if not isinstance(leaf, Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
            return leaf
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.tree.map(gather, tree)


def check_same(text: str, difference: str) -> None:
    """Raise a UsageError, "process N" and the difference, unless all processes have the same text.

    It is raised in all processes.
    """
    if jax.process_count() > 1:
        sums = multihost_utils.process_allgather(np.uint32(zlib.crc32(text.encode())))
        _check_processes(sums == sums[0], difference)


@contextmanager
def own_workdir(workdir: Workdir, config: object) -> Iterator[Workdir]:
    """Return the workdir to process 0, and to the others a temporary copy of its files.

    So one process writes the files of a run, and code that writes files, also that of plugins, is
    the same for any number of processes. All write the checkpoints, which are not copied.

    Raises:
        UsageError: a process has another config or another folder; or the error of the block,
            with the name of the workdir in place of that of its copy.
    """
    if jax.process_count() == 1:
        yield workdir
        return
    check_same(
        f"{workdir.path.absolute().name} {config}",
        "has another --workdir or another config than process 0: start all with the same flags",
    )
    _check_shared(workdir.path)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        own = workdir
        if jax.process_index():
            own = Workdir(Path(folder) / workdir.path.absolute().name)
            own.checkpoints = workdir.checkpoints
            for path in workdir.path.glob("*"):
                own.path.mkdir(exist_ok=True)
                if path.is_file() and not path.name.endswith(PART):
                    shutil.copy2(path, own.path)
        multihost_utils.sync_global_devices("workdir")  # process 0 writes when all have copied
        try:
            yield own
        except UsageError as error:
            raise UsageError(str(error).replace(str(own.path), str(workdir.path))) from error


def _check_port(coordinator: str) -> None:
    port = int(coordinator.rpartition(":")[2])
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
        except OSError as error:
            raise UsageError(
                f"--coordinator={coordinator} needs port {port}: {error.strerror}"
            ) from error


def _check_shared(folder: Path) -> None:
    """Check that a file in this folder, or in a parent if it is missing, exists for all."""
    token = np.frombuffer(uuid4().bytes, np.uint8)
    name = f"{bytes(multihost_utils.broadcast_one_to_all(token)).hex()}{PART}"
    folders = [folder, *folder.absolute().parents]
    marker = next(path for path in folders if path.is_dir()) / name
    if jax.process_index() == 0:
        marker.touch()
    multihost_utils.sync_global_devices("marker")
    try:
        is_visible = any((path / name).exists() for path in folders)
        visible = multihost_utils.process_allgather(np.array(is_visible))
    finally:
        if jax.process_index() == 0:
            marker.unlink()
    _check_processes(
        visible,
        f"has another folder {folder} than process 0: put --workdir on a file system that all "
        "processes share",
    )


def _check_processes(agrees: np.ndarray, difference: str) -> None:
    if others := ", ".join(map(str, np.flatnonzero(~agrees))):
        raise UsageError(f"process {others} {difference}")


@contextmanager
def exit_process() -> Iterator[None]:
    """Exit: shut down jax.distributed after success; after an error without the barrier.

    The other processes exit when they miss the heartbeat of this one. They would not reach the
    barrier.
    """
    try:
        yield
    except BaseException as error:
        if not jax.distributed.is_initialized():
            raise
        if isinstance(error, SystemExit) and not error.code:
            jax.distributed.shutdown()
            raise
        if LOST.search(str(error)):
            rank = f"process {jax.process_index()} of {jax.process_count()}"
            hint = f"run.py: {rank} cannot reach another, which jax names below if it has ended"
            print(hint, file=sys.stderr, flush=True)
            time.sleep(NAMED_SECONDS)
        if not isinstance(error, SystemExit):
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.code if isinstance(error, SystemExit) else 1)

"""Cores and memory of this process; start and agreement of several that train one model."""

import os
import re
import resource
import socket
import sys
import time
import traceback
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.errors import UsageError

HEARTBEAT_SECONDS = 10  # without a sign of life after which a process is lost
# Variables of SLURM and Open MPI: the number of processes.
NUM_TASKS_VARIABLES = "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"
LOST = re.compile("gloo|nccl|connection", re.IGNORECASE)  # in errors after a process has ended
NAMED_SECONDS = 15  # in which jax ends a process that has lost another one, with its number


def num_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_per_process(coordinator: str | None, num_processes: int | None) -> int:
    """Return the number of cores that each process of this machine computes on.

    Launchers bind processes to cores. Processes with a coordinator on this very machine share them.
    """
    host = (coordinator or "").rpartition(":")[0]
    is_shared = host in ("localhost", "127.0.0.1", "[::1]")
    return max(1, num_cores() // (num_processes or 1)) if is_shared else num_cores()


def cores_as_devices(number: int) -> None:
    """Make each core a device of the CPU backend, unless the environment sets their number.

    JAX reads this once, before it computes anything.
    """
    is_set = jax.config.jax_num_cpu_devices > 0
    if not is_set and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", number)


def free_memory() -> float:
    """Return the free bytes of the first device; infinite if they are unknown."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    memory = Path("/proc/meminfo")
    text = memory.read_text(encoding="ascii") if memory.exists() else ""
    available = re.search(r"^MemAvailable: *(\d+)", text, re.MULTILINE)
    return 1024 * int(available[1]) if available else float("inf")


def peak_memory() -> int:
    """Return the most bytes that were in use so far: of the first device, else of this process."""
    stats = jax.local_devices()[0].memory_stats() or {}
    unit = 1 if sys.platform == "darwin" else 1024
    used = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return stats.get("peak_bytes_in_use", used)


def start_processes(
    coordinator: str | None, num_processes: int | None, process_id: int | None
) -> None:
    """Connect this process with the others of its run; before jax uses a device.

    Without arguments, jax finds the processes of SLURM or Open MPI. Process 0 listens at the
    coordinator, HOST:PORT; one process is this one alone, whatever launcher started it.

    Raises:
        UsageError: the port is in use, or jax cannot find the processes of a launcher.
    """
    is_launched = any(int(os.environ.get(name, 1)) > 1 for name in NUM_TASKS_VARIABLES)
    if num_processes == 1 or (coordinator is None and not is_launched):
        return
    if process_id == 0:
        port = int(coordinator.rpartition(":")[2])
        try:
            socket.create_server(("", port)).close()
        except OSError as error:
            reason = os.strerror(error.errno)
            raise UsageError(f"--coordinator={coordinator} needs port {port}: {reason}") from error
    # This service would replace the handler of SIGTERM in `experiments.train.interruption`.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            cluster_detection_method="deactivate" if coordinator else None,
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


def check_same(text: str, difference: str) -> None:
    """Raise a UsageError, "process N DIFFERENCE", in all processes unless all have one text."""
    if jax.process_count() > 1:
        sums = multihost_utils.process_allgather(np.uint32(zlib.crc32(text.encode())))
        if others := ", ".join(map(str, np.flatnonzero(sums != sums[0]))):
            raise UsageError(f"process {others} {difference}")


@contextmanager
def exit_process() -> Iterator[None]:
    """Exit: shut down jax.distributed after success; after an error without its barrier.

    The other processes would not reach it; they exit when they miss the heartbeat of this one.
    """
    try:
        yield
    except BaseException as error:
        if not jax.distributed.is_initialized():
            raise
        code = error.code if isinstance(error, SystemExit) else 1
        if not code:
            jax.distributed.shutdown()
            raise
        if LOST.search(str(error)):
            rank = f"process {jax.process_index()} of {jax.process_count()}"
            hint = f"{rank} cannot reach another, which jax names below if it has ended"
            print(hint, file=sys.stderr, flush=True)
            time.sleep(NAMED_SECONDS)
        if not isinstance(error, SystemExit):
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

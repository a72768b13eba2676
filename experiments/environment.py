"""Where a measurement was made: what a figure means nothing without."""

import math
import os
import platform
import resource
from importlib.metadata import version
from pathlib import Path

import jax
from jax.sharding import Mesh


def num_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> float:
    """Free bytes of the first device; infinite if they are unknown."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    memory = Path("/proc/meminfo")
    lines = memory.read_text(encoding="ascii").splitlines() if memory.exists() else []
    kilobytes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(kilobytes[0]) if kilobytes else math.inf


def peak_memory() -> int:
    """Return the most bytes that were in use so far: of the first device, else of this process."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"]
    unit = 1 if platform.system() == "Darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def bits_depend_on(mesh: Mesh) -> dict[str, str]:
    """What the bits of a trained model depend on, beside the code and the configuration.

    On a CPU, the number of threads divides sums; `NPROC` sets it.
    """
    device = jax.devices()[0]
    axes = " ".join(f"{name}={size}" for name, size in mesh.shape.items() if size > 1)
    return {
        "device": device.device_kind,
        "mesh": axes or "one device",
        "processes": str(jax.process_count()),
        "cores": os.environ.get("NPROC") or str(num_cores()),
        "machine": platform.machine(),
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
    }


def environment() -> dict[str, str]:
    """Platform, device, cores and versions."""
    device = jax.devices()[0]
    return {
        "platform": device.platform,
        "device": device.device_kind,
        "machine": platform.machine(),
        "cores": str(num_cores()),
        "python": platform.python_version(),
        "jax": jax.__version__,
    }

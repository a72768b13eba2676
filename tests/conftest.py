"""One strict session for every test: what jax would mend silently is an error here."""

import gc
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import numpy as np
import pytest
from flax import nnx

REPOSITORY = Path(__file__).resolve().parent.parent
MOST_MAPPINGS = 30_000  # of 65,530; no file adds more than 4,000 with jax 0.10

# A silent promotion of a dtype or a rank is how most shape bugs survive.
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Two devices, as a machine of two cores has them under run.py.
jax.config.update("jax_num_cpu_devices", 2)

# Most of the time of the tests is compilation, and programs that run once need not run fast.
jax.config.update("jax_disable_most_optimizations", True)

# In a folder that git ignores. A small program, too, is read faster than it is compiled.
CACHE = {"jax_compilation_cache_dir": str(REPOSITORY / ".cache" / "jax")}
CACHE |= {"jax_persistent_cache_min_compile_time_secs": 0}


def pytest_runtest_setup() -> None:
    """Store all programs, small ones too, also after a command has set a smallest time."""
    for name, value in CACHE.items():
        jax.config.update(name, value)


pytest_runtest_setup()  # some files compile when they are imported

# Two flags of XLA halve the rest: the older emitters of loops (gone in jax 0.12), and one LLVM
# module for each program, not 32. XLA reads them when its first program is compiled.
if jax.__version_info__[:2] == (0, 10):
    faster = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {faster}".strip()

# Tracing makes many small objects that stay: to look through all of them so often takes time too.
gc.set_threshold(1_000_000, 50, 100)

# Images of containers often switch bytecode off: then each process that a test starts would compile
# every module of this repository again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Half of the time of tracing a model is an error message that is dropped: flax asks for the
# sharding of the counter of random keys each time that it replaces it, and a tracer has none.
nnx.RngCount.__setitem__ = lambda count, _, value: count.set_value(value)

# The first example of a shape compiles, so a deadline would measure the compiler; a failure that
# shows once must show again.
hypothesis.settings.register_profile("strict", deadline=None, derandomize=True, max_examples=30)
hypothesis.settings.load_profile("strict")


@pytest.fixture(scope="module", autouse=True)
def clear_programs() -> Iterator[None]:
    """Free the compiled programs after a file, once they have many memory mappings.

    A process may have 65,530 mappings, and each program has several: one process that kept the
    programs of all files ended in a segmentation fault. Until then, files share the programs of
    common operations. A worker of `make test` makes 20,000 with jax 0.10, and 31,000 with jax 0.12.
    """
    yield
    if num_mappings() > MOST_MAPPINGS:
        jax.clear_caches()


def pytest_sessionfinish() -> None:
    """Skip the last garbage collections of a worker, which reports nothing that they find."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        gc.freeze()


def num_mappings() -> float:
    """Return the number of memory mappings of this process, infinity where it is not known."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return math.inf


@pytest.fixture
def float64() -> Iterator[None]:
    """Lets one test compute in float64; everybody else lives in jax's usual float32."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of parallel text like that of Multi30k."""
    place = tmp_path_factory.mktemp("captions")
    text = "ein kleiner großer roter hund läuft schnell über wiese straße mann frau zwei"
    words = text.split()
    random = np.random.default_rng(0)
    for split, number in (("train", 60), ("validation", 3), ("test_2016", 3)):
        lines = [" ".join(random.choice(words, 6)) for _ in range(number)]
        (place / f"{split}.de").write_text("\n".join(lines) + "\n")
        (place / f"{split}.en").write_text("\n".join(line[::-1] for line in lines) + "\n")
    return place

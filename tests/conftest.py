"""One strict session for every test: what jax would mend silently is an error here."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import numpy as np
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

# A silent promotion of a dtype or a rank is how most shape bugs survive.
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Two devices, as a machine of two cores has them under run.py.
jax.config.update("jax_num_cpu_devices", 2)

# Compiling is what these tests spend their time on, and programs that run once need not run fast.
# Every session compiles the same ones: kept on disk, in a folder that git ignores, they cost a
# third of the time from the second session on. What compiles at once is not worth a file.
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_compilation_cache_dir", str(REPOSITORY / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)

# A third of the time again: the compiler of jax 0.10 has an older way to write loops, which is
# quicker at that and no longer there in 0.12. XLA reads this when its first program is compiled.
if jax.__version_info__[:2] == (0, 10):
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_use_fusion_emitters=false".strip()

# Tracing makes many small objects that stay: to look through all of them so often takes time too.
gc.set_threshold(100_000, 50, 100)

# The first example of a shape compiles, so a deadline would measure the compiler; a failure that
# shows once must show again.
hypothesis.settings.register_profile("strict", deadline=None, derandomize=True, max_examples=30)
hypothesis.settings.load_profile("strict")


@pytest.fixture(scope="module", autouse=True)
def clear_programs() -> Iterator[None]:
    """Frees the compiled programs of each file.

    Each holds several memory mappings, and a process may have 65,530 of them: a session that kept
    all programs ended in a segmentation fault.
    """
    yield
    jax.clear_caches()


@pytest.fixture
def float64() -> Iterator[None]:
    """Lets one test compute in float64; everybody else lives in jax's usual float32."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of parallel text like that of Multi30k."""
    place = tmp_path_factory.mktemp("captions")
    words = [
        "ein",
        "kleiner",
        "großer",
        "roter",
        "hund",
        "läuft",
        "schnell",
        "über",
        "wiese",
        "straße",
        "mann",
        "frau",
        "zwei",
    ]
    random = np.random.default_rng(0)
    for split, number in (("train", 60), ("validation", 3), ("test_2016", 3)):
        lines = [" ".join(random.choice(words, 6)) for _ in range(number)]
        (place / f"{split}.de").write_text("\n".join(lines) + "\n")
        (place / f"{split}.en").write_text("\n".join(line[::-1] for line in lines) + "\n")
    return place

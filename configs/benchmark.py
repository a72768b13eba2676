"""Benchmark: time, memory and error of attention beside jax, flax, torch and tokamax.

command    python run.py --mode=benchmark    (or: --mode=benchmark --config=configs/benchmark.py)
           with --config.cases=all for the whole grid, which takes hours on a CPU
hardware   two CPU cores, 24 GiB of memory; runs on a GPU unchanged
time       19 minutes
score      docs/BENCHMARKS.md
"""

from ml_collections import ConfigDict

from configs import defaults


def get_config(form: str = "") -> ConfigDict:
    """The benchmark, or its tiny form that ends in seconds."""
    config = ConfigDict()
    config.task = "benchmark"

    # Names of cases (experiments/benchmarks/cases.py) and of contenders, patterns of them, or all.
    config.cases = " ".join(
        [
            *(f"full_{length}_float32_gradient" for length in (64, 128, 256, 512)),
            *(f"causal_{2**power}_float32_gradient" for power in range(6, 14)),
            *(f"causal_{length}_float32_forward" for length in (1024, 4096, 8192)),
            "full_4096_float32_* packed_4096_float32_*",
            "window_16384_float32_forward causal_4096_bfloat16_forward",
        ]
    )
    config.contenders = "all"
    config.accuracy = "full_1024_*_gradient causal_1024_*_gradient"  # of one example, not a batch
    config.seconds = 1.5  # of the timed calls of a contender in a case
    config.rounds = 6  # at most
    config.page = ""  # a .md file: the report is written there too, its figures beside it as JSON

    if defaults.is_tiny(form):
        config.cases = "causal_64_float32_gradient packed_64_bfloat16_forward"
        config.contenders = "attend:* jax.nn"
        config.accuracy = "window_64_float32_gradient"
        config.seconds = 0.2
        config.rounds = 2
    return config

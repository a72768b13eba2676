"""Profile of a training step and of beam search: shares of time by source file.

command    python run.py --mode=benchmark --config=configs/benchmark_steps.py
           with --config.translation.data.path=FOLDER, that of Multi30k
hardware   two CPU cores
time       2 minutes
score      docs/STEPS.md
"""

from ml_collections import ConfigDict

from configs import multi30k
from configs.forms import FULL, is_tiny


def get_config(form: str = FULL) -> ConfigDict:
    """The profile, or its tiny form that ends in seconds."""
    config = ConfigDict()
    config.task = "step_benchmark"
    config.page = ""  # a .md file: the report is written there too, its figures beside it as JSON
    config.steps = 3  # training steps in a trace

    config.translation = multi30k.get_config(form)
    config.translating = translating = ConfigDict()
    translating.workdir = ""  # a run on that text, for its recipe and parameters
    translating.length = 20  # tokens of each answer without a workdir: parameters are random

    if is_tiny(form):
        config.steps = 1
        translating.length = 5
    else:
        config.translation.data.path = ""
    return config

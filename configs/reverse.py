"""Reverse: a sequence of integers in reverse order.

command    python run.py --config=configs/reverse.py
hardware   two CPU cores
time       not run
score      not run
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.forms import FULL, is_tiny


def get_config(form: str = FULL) -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = defaults.new("translation", "reverse", steps=2_000)
    batch, model = config.batch, config.model

    batch.bucket_lengths = (14, 20, 26)

    model.positions = "sinusoidal"
    model.max_length = 32
    model.width = 64
    model.hidden = 128
    model.tie = "all"

    if is_tiny(form):
        defaults.make_tiny(config)
        batch.tokens = 320
    return config

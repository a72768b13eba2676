"""Reverse: a sequence of integers in reverse order.

command    python run.py --config=configs/reverse.py
hardware   two CPU cores
time       3.0 min of training
score      in_range exact match: 100.00%; longer exact match: 1.80%; seed 0, commit 068a44e
score      reverse_positions/alibi: in_range exact match: 97.20%; longer exact match: 9.80%; seed 0,
           commit d5155ee
score      reverse_positions/learned: in_range exact match: 100.00%; longer exact match: 0.00%; seed
           0, commit d5155ee
score      reverse_positions/none: in_range exact match: 6.70%; longer exact match: 0.00%; seed 0,
           commit d5155ee
score      reverse_positions/relative: in_range exact match: 99.00%; longer exact match: 47.20%;
           seed 0, commit d5155ee
score      reverse_positions/rotary: in_range exact match: 99.60%; longer exact match: 76.60%; seed
           0, commit d5155ee
score      reverse_positions/sinusoidal: in_range exact match: 100.00%; longer exact match: 1.80%;
           seed 0, commit d5155ee
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

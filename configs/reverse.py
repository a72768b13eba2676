"""Reverse: a sequence of integers in reverse order.

command    python run.py --config=configs/reverse.py
hardware   two CPU cores
time       about 3 minutes of training, on a busy machine
score      exact match 100 % at trained lengths, 1.8 % at 26 to 30 integers (seed 0)
           measured with weight decay on all parameters (train.decay_all)

Every position encoding, two to three minutes of training each:

command    python run.py --mode=compare --config=configs/reverse.py
           --grid.model.positions=none,sinusoidal,learned,rotary,alibi,relative
score      exact match in range and of lengths 26 to 30: rotary 99.6 and 76.6 %, relative 99.0 and
           47.2 %, ALiBi 97.2 and 9.8 %, sinusoidal 100 and 1.8 %, learned 100 and 0 %, none 6.7 and
           0 % (seed 0; train.decay_all)
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

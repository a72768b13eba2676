"""Reverse with every way to know positions: which of them carry to lengths that were never seen.

command    python run.py --mode=compare --config=configs/reverse_positions.py
hardware   two CPU cores
time       two to three minutes of training a run, on a busy machine
score      exact match in range and of lengths 26 to 30: rotary 99.6 and 76.6 %, relative 99.0 and
           47.2 %, ALiBi 97.2 and 9.8 %, sinusoidal 100 and 1.8 %, learned 100 and 0 %, none 6.7 and
           0 % (seed 0)
           measured with weight decay on all parameters (train.decay_all)
"""

from ml_collections import ConfigDict

from configs import defaults, reverse
from configs.forms import FULL, is_tiny

SCHEMES = ("none", "sinusoidal", "learned", "rotary", "alibi", "relative")


def get_config(form: str = FULL) -> ConfigDict:
    """The comparison, or that of two tiny runs."""
    schemes = ("sinusoidal", "alibi") if is_tiny(form) else SCHEMES
    runs = {scheme: reverse.get_config(form) for scheme in schemes}
    for scheme, config in runs.items():
        config.model.positions = scheme
    return defaults.comparison(runs)

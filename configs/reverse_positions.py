"""Reverse with every way to know positions: which of them carry to lengths that were never seen.

command    python run.py --mode=compare --config=configs/reverse_positions.py
hardware   two CPU cores
time       not measured yet
score      not measured yet
"""

from ml_collections import ConfigDict

from configs import defaults, reverse
from configs.forms import FULL

SCHEMES = ("none", "sinusoidal", "learned", "rotary", "alibi", "relative")


def get_config(form: str = FULL) -> ConfigDict:
    """The comparison, or that of tiny runs which end in minutes."""
    runs = {scheme: reverse.get_config(form) for scheme in SCHEMES}
    for scheme, config in runs.items():
        config.model.positions = scheme
    return defaults.comparison(runs)

"""SCAN by length with every way to know positions: which carry to lengths that were never seen.

command    python run.py --mode=compare --config=configs/scan_positions.py --config.data.path=FOLDER
hardware   two CPU cores
time       three to four minutes of training a run, on a busy machine
score      exact match of what takes more than 26 actions: ALiBi 39.6 %, rotary 8.5 %, sinusoidal
           6.7 %, relative 3.2 %, none 1.4 %, learned 0 % (seed 0)
           measured with weight decay on all parameters (train.decay_all)
"""

from ml_collections import ConfigDict

from configs import defaults, scan_length
from configs.forms import FULL, is_tiny

SCHEMES = ("none", "sinusoidal", "learned", "rotary", "alibi", "relative")


def get_config(form: str = FULL) -> ConfigDict:
    """The comparison, or that of two tiny runs."""
    schemes = ("relative", "alibi") if is_tiny(form) else SCHEMES
    runs = {scheme: scan_length.get_config(form) for scheme in schemes}
    for scheme, config in runs.items():
        config.model.positions = scheme
        if not is_tiny(form):
            defaults.set_steps(config.train, 1_500)
    return defaults.comparison(runs)

"""SCAN by length with every way to know positions: which carry to lengths that were never seen.

command    python run.py --mode=compare --config=configs/scan_positions.py --config.data.path=FOLDER
hardware   two CPU cores
time       not measured yet
score      not measured yet
"""

from ml_collections import ConfigDict

from configs import defaults, scan_length
from configs.forms import FULL

SCHEMES = ("none", "sinusoidal", "learned", "rotary", "alibi", "relative")


def get_config(form: str = FULL) -> ConfigDict:
    """The comparison, or that of tiny runs which end in minutes."""
    runs = {scheme: scan_length.get_config(form) for scheme in SCHEMES}
    for scheme, config in runs.items():
        config.model.positions = scheme
    return defaults.comparison(runs)

"""The main job with a recurrent model: a bidirectional GRU with additive attention.

command    python run.py --config=configs/toy_translation_rnn.py
hardware   two CPU cores
time       not run
score      not run
"""

from ml_collections import ConfigDict

from configs import defaults, toy_translation
from configs.forms import FULL, is_tiny


def get_config(form: str = FULL) -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = toy_translation.get_config(form)
    config.architecture = "recurrent"
    config.batch.packed = False
    config.model = defaults.recurrent()

    if is_tiny(form):
        defaults.make_tiny(config)
    return config

"""The main job with a recurrent model: a bidirectional GRU with additive attention.

command    python run.py --config=configs/toy_translation_rnn.py
hardware   two CPU cores
time       152 s of training
score      exact match 97.1 % on test, 96.8 % on compositional, 91.8 % on longer; agreement 98.4 %,
           order 97.2 %, words with several senses 89.5 % (seed 0)
           measured with weight decay on all parameters (train.decay_all)
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

"""The main job with a recurrent model: a bidirectional GRU with additive attention.

command    python run.py --config=configs/toy_translation_rnn.py
hardware   two CPU cores
time       2.5 min of training
score      test exact match 97.10%, compositional exact match 96.80%, longer exact match 91.80%,
           agreement exact match 98.40%, order exact match 97.20%, polysemy exact match 89.50%; seed
           0, commit cebcb9e
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

"""Masked language model: an encoder predicts masked words; a probe tests its vectors for senses.

command    python run.py --config=configs/masked_lm.py
hardware   two CPU cores
time       6.8 min of training
score      test accuracy: 46.66%; senses accuracy: 93.15%; seed 0, commit 3923081
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.forms import FULL, is_tiny


def get_config(form: str = FULL) -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = defaults.new("masked_language_model", "toy", steps=3_000)
    data, batch, model = config.data, config.batch, config.model

    batch.tokens = 3_072
    model.max_length = 24

    if is_tiny(form):
        defaults.make_tiny(config)
        data.sizes.test = 200  # enough for a few words of several senses
        batch.tokens = 480
    return config

"""Word language model: sentences of the toy language, packed into rows.

command    python run.py --config=configs/packed_lm.py
hardware   two CPU cores
time       0.6 min of training
score      test accuracy: 35.99%; compositional accuracy: 33.10%; longer accuracy: 25.96%; seed 0,
           commit b1f56263
"""

from ml_collections import ConfigDict

from configs import defaults


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = defaults.new("language_model", "toy", steps=600)

    config.batch.row_length = 64
    config.model.max_length = 64
    config.decoding.max_tokens = 40

    if defaults.is_tiny(form):
        defaults.make_tiny(config)
        config.batch.tokens = 256
        config.decoding.max_tokens = 20
    return config

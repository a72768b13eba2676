"""Word vectors by skip-grams: one static vector for each word, a baseline of `masked_lm`.

command    python run.py --config=configs/word_vectors.py
hardware   two CPU cores
time       0.2 min of training
score      test accuracy: 34.23%; word accuracy: 46.58%; neighbours accuracy: 82.65%; seed 0, commit
           3923081
"""

from ml_collections import ConfigDict

from configs import defaults


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = defaults.new("word_vectors", "toy", steps=2_000)
    config.train.learning_rate = 1e-2
    config.train.weight_decay = 0.0

    if defaults.is_tiny(form):
        defaults.make_tiny(config)
        config.data.sizes.test = 200  # enough for a few words of several senses
        config.batch.size = 64
    return config

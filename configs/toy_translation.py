"""The main job: a small Transformer learns to translate the toy language.

command    python run.py                (or: python run.py --config=configs/toy_translation.py)
hardware   two CPU cores
time       89 s of training by `make train` (compilation, validation and samples included)
score      exact match 98.8 % on test, 98.5 % on compositional, 38.2 % on longer (seed 0; with seeds
           1 and 2: 99.5 and 99.4 %, 99.0 and 96.7 %, 25.0 and 26.2 %)
           measured with weight decay on all parameters (train.decay_all)
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.forms import FULL, is_tiny


def get_config(form: str = FULL) -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = defaults.new("translation", "toy", steps=1_300)
    config.batch.packed = True
    config.batch.tokens = 1_344  # 28 rows of 48
    config.batch.microbatches = 2
    config.train.label_smoothing = 0.1
    config.train.learning_rate = 5e-3
    if is_tiny(form):
        defaults.make_tiny(config)
        config.batch.tokens = 480
    return config

"""The main job: a small Transformer learns to translate the toy language.

command    python run.py                (or: python run.py --config=configs/toy_translation.py)
hardware   two CPU cores
time       88 s of training by `make train` (compilation, validation and samples included)
score      exact match 99.3 ± 0.1 % on test, 98.7 ± 0.5 % on compositional, 40.2 ± 8.7 % on longer
           (mean and standard deviation of seeds 0, 1 and 2, by --mode=sweep --seeds=0,1,2)
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.forms import FULL, is_tiny


def get_config(form: str = FULL) -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = defaults.new("translation", "toy", steps=1_300)
    config.batch.packed = True
    config.batch.tokens = 1_344  # 28 rows of 48
    config.train.label_smoothing = 0.1
    config.train.learning_rate = 5e-3
    if is_tiny(form):
        defaults.make_tiny(config)
        config.batch.tokens = 480
    return config

"""Post-norm and learned positions instead of pre-norm and rotary ones.

command    python run.py --config=configs/toy_translation_postnorm.py
hardware   two CPU cores
time       116 s of training (compilation, validation and samples included)
score      exact match 99.2 % on test, 98.6 % on compositional, 3.6 % on longer (seed 0)
"""

from ml_collections import ConfigDict

from configs import toy_translation
from configs.forms import FULL


def get_config(form: str = FULL) -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = toy_translation.get_config(form)
    config.model.norm = "post"
    config.model.positions = "learned"
    return config

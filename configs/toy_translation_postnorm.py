"""Post-norm and learned positions instead of pre-norm and rotary ones.

command    python run.py --config=configs/toy_translation_postnorm.py
hardware   two CPU cores
time       not run
score      not run
"""

from ml_collections import ConfigDict

from configs import toy_translation
from configs.forms import FULL


def get_config(form: str = FULL) -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = toy_translation.get_config(form)
    config.model.norm_placement = "post"
    config.model.positions = "learned"
    return config

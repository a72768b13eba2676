"""Grouped queries: the main job with one key/value head for each pair of query heads.

command    python run.py --config=configs/toy_translation_gqa.py
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
    config.model.num_heads = 4
    config.model.num_kv_heads = 2
    return config

"""Grouped queries: the main job with one key/value head for each pair of query heads.

command    python run.py --config=configs/toy_translation_gqa.py
hardware   two CPU cores
time       1.4 min of training
score      test exact match: 99.13% ± 0.06%; agreement exact match: 98.86% ± 0.23%; order exact
           match: 99.20% ± 0.22%; polysemy exact match: 99.70% ± 0.26%; compositional exact match:
           98.63% ± 0.51%; longer exact match: 28.20% ± 2.09%; seeds 0, 1, 2, commit f36d398
"""

from ml_collections import ConfigDict

from configs import toy_translation


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = toy_translation.get_config(form)
    config.model.num_heads = 4
    config.model.num_kv_heads = 2
    return config

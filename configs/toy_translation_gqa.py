"""Grouped queries: the main job with one key/value head for each pair of query heads.

command    python run.py --config=configs/toy_translation_gqa.py
hardware   two CPU cores
time       1.3 min of training
score      test exact match: 99.20% ± 0.20%; agreement exact match: 99.04% ± 0.42%; order exact
           match: 99.14% ± 0.29%; polysemy exact match: 99.06% ± 0.47%; compositional exact match:
           97.93% ± 0.32%; longer exact match: 30.20% ± 7.01%; seeds 0, 1, 2, commit 9f763dfc
"""

from ml_collections import ConfigDict

from configs import toy_translation


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = toy_translation.get_config(form)
    config.model.num_heads = 4
    config.model.num_kv_heads = 2
    return config

"""Post-norm and learned positions instead of pre-norm and rotary ones.

command    python run.py --config=configs/toy_translation_postnorm.py
hardware   two CPU cores
time       1.4 min of training
score      test exact match: 99.20% ± 0.35%; agreement exact match: 98.80% ± 0.48%; order exact
           match: 99.10% ± 0.50%; polysemy exact match: 99.37% ± 0.72%; compositional exact match:
           98.03% ± 0.06%; longer exact match: 2.80% ± 1.22%; seeds 0, 1, 2, commit 4ee3182a
"""

from ml_collections import ConfigDict

from configs import toy_translation


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = toy_translation.get_config(form)
    config.model.norm_placement = "post"
    config.model.positions = "learned"
    return config

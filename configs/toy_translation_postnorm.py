"""Post-norm and learned positions instead of pre-norm and rotary ones.

command    python run.py --config=configs/toy_translation_postnorm.py
hardware   two CPU cores
time       2.1 min of training
score      test exact match: 98.67% ± 0.15%; agreement exact match: 98.48% ± 0.26%; order exact
           match: 98.63% ± 0.08%; polysemy exact match: 98.93% ± 0.26%; compositional exact match:
           97.77% ± 0.60%; longer exact match: 1.93% ± 1.63%; seeds 0, 1, 2, commit 3923081
"""

from ml_collections import ConfigDict

from configs import toy_translation


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = toy_translation.get_config(form)
    config.model.norm_placement = "post"
    config.model.positions = "learned"
    return config

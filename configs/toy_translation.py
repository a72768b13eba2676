"""The main job: a small Transformer learns to translate the toy language.

command    python run.py                (or: python run.py --config=configs/toy_translation.py)
hardware   two CPU cores
time       1.3 min of training
score      test exact match: 99.47% ± 0.15%; agreement exact match: 99.32% ± 0.23%; order exact
           match: 99.58% ± 0.14%; polysemy exact match: 100.00% ± 0.00%; compositional exact match:
           99.13% ± 0.46%; longer exact match: 32.60% ± 10.30%; seeds 0, 1, 2, commit d11ad0e
"""

from ml_collections import ConfigDict

from configs import defaults


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = defaults.new("translation", "toy", steps=1_300)
    config.batch.packed = True
    config.batch.tokens = 1_344  # 28 rows of 48
    config.train.label_smoothing = 0.1
    config.train.learning_rate = 5e-3
    if defaults.is_tiny(form):
        defaults.make_tiny(config)
        config.batch.tokens = 480
    return config

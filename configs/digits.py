"""Digits: a Transformer classifies images, with patches as tokens (ViT).

command    python run.py --config=configs/digits.py
hardware   two CPU cores
time       0.3 min of training
score      test accuracy: 97.69% ± 0.70%; seeds 0, 1, 2, commit 4ee3182a
"""

from ml_collections import ConfigDict

from configs import defaults


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = defaults.new("classification", "digits", steps=1_500)
    model = config.model

    model.width = 64
    model.hidden = 128
    model.activation = "gelu"
    model.positions = "learned"
    model.max_length = 16

    config.train.label_smoothing = 0.1

    if defaults.is_tiny(form):
        defaults.make_tiny(config)
        config.batch.size = 16
    return config

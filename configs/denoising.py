"""Denoising: restore a noised document, the training task of BART.

command    python run.py --config=configs/denoising.py
hardware   two CPU cores
time       6.4 min of training
score      test BLEU: 69.39 (for comparison: 62.4 (the noised documents without masks)); seed 0,
           commit 49694912
"""

from ml_collections import ConfigDict

from configs import defaults


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = defaults.new("translation", "denoising", steps=4_000)
    config.literature = ConfigDict({"test": {"bleu": "62.4 (the noised documents without masks)"}})
    data, batch, model = config.data, config.batch, config.model

    data.passes = 12

    batch.bucket_lengths = (32, 48, 64)
    batch.tokens = 2_048

    model.max_length = 96
    model.tie = "all"

    if defaults.is_tiny(form):
        model.max_length = 64
        defaults.make_tiny(config)
        batch.tokens = 960
    return config

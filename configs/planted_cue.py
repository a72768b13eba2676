"""Planted cue: one source word decides the target word, the control of explanations.

command    python run.py --config=configs/planted_cue.py
hardware   two CPU cores
time       1.1 min of training
score      test exact match: 100.00%; cue ranked first attention after rollout of the encoder:
           1.000; cue ranked first attention, layer 1: 1.000; cue ranked first attention, mean of
           layers: 1.000; cue ranked first gradient times input: 0.450; cue ranked first integrated
           gradients: 1.000; cue ranked first occlusion by an empty vector: 1.000; cue ranked first
           occlusion by the mean word: 1.000; cue ranked first weighted value norms, layer 1: 0.995;
           cue ranked first random order: 0.116; seed 0, commit 679a499
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.forms import FULL, is_tiny


def get_config(form: str = FULL) -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = defaults.new("translation", "planted_cue", steps=300)
    batch, model, train = config.batch, config.model, config.train

    batch.bucket_lengths = (16,)

    model.width = 32
    model.hidden = 64
    model.decoder_layers = 1
    model.max_length = 16

    train.learning_rate = 5e-3

    if is_tiny(form):
        defaults.make_tiny(config)
        batch.tokens = 320
    return config

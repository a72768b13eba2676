"""Gaps: an encoder learns to say what stood in them, and what its vectors then know of words.

command    python run.py --config=configs/masked_lm.py
hardware   two CPU cores
time       6 minutes of training (compilation and validation included), on a busy machine
score      gaps filled 46.8 %, perplexity 5.5; the sense of an ambiguous word found 93.2 % (seed 0)
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.forms import FULL, is_tiny


def get_config(form: str = FULL) -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = ConfigDict()
    config.experiment = "masked_language_model"
    config.seed = 0

    config.data = data = ConfigDict()
    data.seed = 0
    data.sizes = defaults.toy_sizes()
    data.bucket_lengths = (8, 11, 14, 21)

    config.model = model = defaults.encoder()
    model.max_length = 24

    config.train = train = defaults.training(3_000)
    train.batch_tokens = 3_072

    if is_tiny(form):
        defaults.make_short(train)
        data.sizes = defaults.toy_sizes(few=True)
        data.sizes.test = 200  # enough for a few words of several senses
        data.bucket_lengths = (24,)
        train.batch_tokens = 480
        model.update({"width": 32, "hidden": 48, "dropout": 0.1})
    return config

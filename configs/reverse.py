"""Reverse: integers, said from the last to the first.

command    python run.py --config=configs/reverse.py
hardware   two CPU cores
time       about 3 minutes of training, on a busy machine
score      exact match 100 % in range, 1.8 % of 26 to 30 integers (seed 0)
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.forms import FULL, is_tiny


def get_config(form: str = FULL) -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = ConfigDict()
    config.experiment = "translation"
    config.architecture = "transformer"
    config.seed = 0

    config.data = data = ConfigDict()
    data.name = "reverse"
    data.seed = 0
    data.numbers = 50
    data.longest_train = 25
    data.longest_test = 30
    data.sizes = ConfigDict()
    data.sizes.train = 50_000
    data.sizes.validation = 1_000
    data.sizes.test = 1_000
    data.sizes.in_range = 1_000
    data.sizes.longer = 500
    data.bucket_lengths = (14, 20, 26)

    config.model = model = defaults.transformer()
    model.positions = "sinusoidal"
    model.max_length = 32
    model.width = 64
    model.hidden = 128
    model.tie = "all"

    config.train = train = defaults.training(2_000)
    train.batch_tokens = 1_536

    config.decoding = defaults.greedy()

    if is_tiny(form):
        defaults.make_short(train)
        data.sizes.update(
            {"train": 1_000, "validation": 20, "test": 20, "in_range": 20, "longer": 20}
        )
        data.bucket_lengths = (model.max_length,)
        train.batch_tokens = 320
        model.update({"width": 32, "hidden": 48, "dropout": 0.1})
    return config

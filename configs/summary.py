"""Summary: a few sentences in, one out, which says what the main person did.

command    python run.py --config=configs/summary.py
hardware   two CPU cores
time       not measured yet
score      not measured yet
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
    data.name = "summary"
    data.seed = 0
    data.shortest = 4  # sentences of a document
    data.longest = 8
    data.sizes = ConfigDict()
    data.sizes.train = 20_000
    data.sizes.validation = 1_000
    data.sizes.test = 1_000
    data.bucket_lengths = (32, 40, 48)

    config.model = model = defaults.transformer()
    model.max_length = 64
    model.tie = "all"

    config.train = train = defaults.training(1_000)
    train.batch_tokens = 2_048

    config.decoding = defaults.greedy()

    if is_tiny(form):
        defaults.make_short(train)
        data.sizes.update({"train": 1_000, "validation": 20, "test": 20})
        data.bucket_lengths = (48,)
        train.batch_tokens = 512
        model.update({"width": 32, "hidden": 48, "dropout": 0.1})
    return config

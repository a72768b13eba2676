"""Copy: digits, said again, the smallest task that needs a model to look back.

command    python run.py --config=configs/copy.py
hardware   two CPU cores
time       25 s of training
score      validation perplexity 1.000, exact match 100 % on test (seed 0)
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
    data.name = "copy"
    data.seed = 0
    data.shortest = 10
    data.longest = 30
    data.sizes = ConfigDict()
    data.sizes.train = 20_000
    data.sizes.validation = 1_000
    data.sizes.test = 1_000
    data.bucket_lengths = (17, 24)

    config.model = model = defaults.transformer()
    model.width = 32
    model.hidden = 64
    model.encoder_layers = 1
    model.decoder_layers = 1
    model.positions = "sinusoidal"  # what stands at the same place is what is said
    model.max_length = 32
    model.tie = "all"

    config.train = train = defaults.training(1_200)
    train.batch_tokens = 1_536
    train.learning_rate = 5e-3

    config.decoding = defaults.greedy()

    if is_tiny(form):
        defaults.make_short(train)
        data.sizes.update({"train": 1_000, "validation": 20, "test": 20})
        data.bucket_lengths = (32,)
        train.batch_tokens = 320
        model.dropout = 0.1
    return config

"""Static vectors, one for each word, by skip-grams: what the vectors of `masked_lm` improve on.

command    python run.py --config=configs/word_vectors.py
hardware   two CPU cores
time       11 s of training
score      the sense of an ambiguous word found by the vector of the word 46.6 % (its commonest
           sense: 50.7 %), by the mean vector of its neighbours 84.9 % (seed 0)
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.forms import FULL, is_tiny


def get_config(form: str = FULL) -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = ConfigDict()
    config.experiment = "word_vectors"
    config.seed = 0

    config.data = data = ConfigDict()
    data.seed = 0
    data.sizes = ConfigDict()
    data.sizes.train = 40_000
    data.sizes.validation = 1_000
    data.sizes.test = 1_000
    data.sizes.compositional = 1_000
    data.sizes.longer = 500
    data.window = 4
    data.negatives = 8
    data.threshold = 1e-3  # the share of all words above which occurrences are left out

    config.model = ConfigDict()
    config.model.width = 96

    config.train = train = defaults.training(2_000)
    train.batch_size = 1_024
    train.learning_rate = 1e-2
    train.weight_decay = 0.0
    del train.label_smoothing  # nothing here has a label

    if is_tiny(form):
        defaults.make_short(train)
        data.sizes.update(
            {"train": 1_000, "validation": 20, "test": 200, "compositional": 20, "longer": 20}
        )
        train.batch_size = 64
        config.model.width = 16
    return config

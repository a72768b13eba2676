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
    data.sizes = defaults.toy_sizes()
    data.window = 4
    data.negatives = 8
    data.threshold = 1e-3  # the share of all words above which occurrences are left out

    config.model = ConfigDict()
    config.model.width = 96

    config.train = train = defaults.training(2_000)
    train.batch_size = 1_024
    train.learning_rate = 1e-2
    train.weight_decay = 0.0
    del train.label_smoothing, train.z_loss  # nothing here has a label or a softmax

    if is_tiny(form):
        defaults.make_short(train)
        data.sizes = defaults.toy_sizes(few=True)
        data.sizes.test = 200  # enough for a few words of several senses
        train.batch_size = 64
        config.model.width = 16
    return config

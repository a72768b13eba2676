"""SCAN: commands become actions, "jump twice" becomes I_JUMP I_JUMP.

The files are those of Lake and Baroni 2018, `data.path` is their folder.

command    python run.py --config=configs/scan.py --config.data.path=FOLDER
hardware   two CPU cores
time       9 minutes of training (compilation and validation included), on a busy machine
score      exact match 99.8 % (published: about 100 %; seed 0)
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

    config.literature = ConfigDict({"test": {"exact_match": "about 100 % (Lake and Baroni 2018)"}})
    config.data = data = ConfigDict()
    data.name = "scan"
    data.path = "data/scan"
    data.split = "simple"
    data.validation = 500
    data.seed = 0
    data.bucket_lengths = (12, 20, 30)

    config.model = model = defaults.transformer()
    model.positions = "relative"
    model.max_length = 52

    config.train = train = defaults.training(3_000)
    train.batch_tokens = 2_048

    config.decoding = defaults.greedy()

    if is_tiny(form):
        defaults.make_short(train)
        data.bucket_lengths = (model.max_length,)
        train.batch_tokens = 512
        model.update({"width": 32, "hidden": 48, "dropout": 0.1})
    return config

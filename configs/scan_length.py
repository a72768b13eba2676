"""SCAN by length: tested on more than 26 actions, trained on fewer.

command    python run.py --config=configs/scan_length.py --config.data.path=FOLDER
hardware   two CPU cores
time       5 minutes of training (compilation and validation included)
score      exact match 48.7 % on commands with more than 26 actions (published with relative
           positions: 100 %, after many more steps; without: 0 %; seed 0)
           measured with weight decay on all parameters (train.decay_all)

Every position encoding, in half the steps, three to four minutes of training each:

command    python run.py --mode=compare --config=configs/scan_length.py --config.data.path=FOLDER
           --config.train.steps=1500
           --grid.model.positions=none,sinusoidal,learned,rotary,alibi,relative
score      exact match of what takes more than 26 actions: ALiBi 39.6 %, rotary 8.5 %, sinusoidal
           6.7 %, relative 3.2 %, none 1.4 %, learned 0 % (seed 0; train.decay_all)
"""

from ml_collections import ConfigDict

from configs import scan
from configs.forms import FULL


def get_config(form: str = FULL) -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = scan.get_config(form)
    config.literature.test.exact_match = "100 % (Csordás et al. 2021)"
    config.model.positions = "alibi"  # the best of those above
    config.data.split = "length"
    config.data.cutoff = 26  # commands with more actions are tested
    config.batch.bucket_lengths = config.batch.bucket_lengths[-1:]
    return config

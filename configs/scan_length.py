"""SCAN by length: tested on more than 26 actions, trained on fewer.

command    python run.py --config=configs/scan_length.py --config.data.path=FOLDER
hardware   two CPU cores
time       5.0 min of training
score      test exact match 48.70% (for comparison: 100 % (Csordás et al. 2021: relative positions,
           more steps)); seed 0, commit 9328ccb
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

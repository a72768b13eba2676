"""The character model with a mixture of experts in every second layer.

Top-2 routing with a limited capacity and a balance loss (Lepikhin et al. 2021, "GShard"); the loss
is logged as `balance`.

command    python run.py --config=configs/char_lm_moe.py
hardware   two CPU cores
time       2.7 min of training
score      char_lm_moe_shakespeare: validation loss: 1.606 (for comparison: 1.88 (nanoGPT: random
           windows of the last tenth of the text; here all of the first half of it)); seed 0, commit
           b1f56263
"""

from ml_collections import ConfigDict

from configs import char_lm, defaults
from experiments.config.build import as_tree
from experiments.config.parts import ExpertsPart


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = char_lm.get_config(form)
    config.model.experts = as_tree(ExpertsPart())
    if defaults.is_tiny(form):
        config.model.decoder_layers = 2
    else:
        config.model.hidden = 256  # of each expert; two serve a token
    return config

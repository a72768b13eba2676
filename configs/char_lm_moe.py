"""The character model with a mixture of experts in every second layer.

Top-2 routing with a limited capacity and a balance loss (Lepikhin et al. 2021, "GShard"); the loss
is logged as `balance`.

command    python run.py --config=configs/char_lm_moe.py
hardware   two CPU cores
time       not measured yet
score      not measured yet
"""

from ml_collections import ConfigDict

from configs import char_lm
from configs.forms import FULL, is_tiny


def get_config(form: str = FULL) -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = char_lm.get_config(form)
    config.model.hidden = 256  # of each expert; two of them serve a token

    config.experts = experts = ConfigDict()
    experts.number = 4
    experts.every = 2  # of so many layers one has experts
    experts.capacity_factor = 1.25  # tokens that an expert takes in training ÷ its equal share
    experts.balance = 0.01  # factor of the balance loss

    if is_tiny(form):
        config.model.hidden = 48
    return config

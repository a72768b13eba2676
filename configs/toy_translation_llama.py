"""The main job with the parts of Llama 3: rotary, grouped queries, RMS norms, gated, no biases.

command    python run.py --config=configs/toy_translation_llama.py
hardware   two CPU cores
time       not run
score      not run
"""

from ml_collections import ConfigDict

from configs import toy_translation
from configs.forms import FULL


def get_config(form: str = FULL) -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = toy_translation.get_config(form)
    model = config.model
    model.num_kv_heads = 2
    model.norm = "rms"
    model.activation = "silu"
    model.gated = True
    model.use_bias = False
    model.positions = "rotary"
    return config

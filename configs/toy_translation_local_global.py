"""The main job with alternating local and global attention and softcaps, as in Gemma 2 and 3.

Local layers attend to a few tokens on either side and have a small rotary base; global layers
attend to all tokens and have a large one.

command    python run.py --config=configs/toy_translation_local_global.py
hardware   two CPU cores
time       2.8 min of training
score      test exact match: 99.50% ± 0.10%; agreement exact match: 99.04% ± 0.24%; order exact
           match: 99.33% ± 0.08%; polysemy exact match: 98.27% ± 0.98%; compositional exact match:
           98.97% ± 0.84%; longer exact match: 37.40% ± 4.36%; seeds 0, 1, 2, commit 4ee3182a
"""

from ml_collections import ConfigDict

from configs import defaults, toy_translation


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = toy_translation.get_config(form)
    model = config.model
    model.encoder_layers = model.decoder_layers = 2 if defaults.is_tiny(form) else 4
    model.softcap = 50.0
    model.logit_softcap = 30.0
    local = {"window": 4, "rotary": {"base": 10_000.0}}
    model.per_layer = (local, {"rotary": {"base": 1_000_000.0}})
    return config

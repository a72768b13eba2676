"""Reverse: a sequence of integers in reverse order.

command    python run.py --config=configs/reverse.py
hardware   two CPU cores
time       1.4 min of training
score      test exact match: 83.27% ± 0.21%; in_range exact match: 99.77% ± 0.32%; longer exact
           match: 3.27% ± 0.64%; seeds 0, 1, 2, commit 64b3f962
score      reverse_positions/positions=alibi: test exact match: 82.20%; in_range exact match:
           98.10%; longer exact match: 10.00%; seed 0, commit b1f56263
score      reverse_positions/positions=learned: test exact match: 82.90%; in_range exact match:
           99.90%; longer exact match: 0.00%; seed 0, commit b1f56263
score      reverse_positions/positions=none: test exact match: 5.30%; in_range exact match: 6.70%;
           longer exact match: 0.00%; seed 0, commit b1f56263
score      reverse_positions/positions=relative: test exact match: 95.70%; in_range exact match:
           99.60%; longer exact match: 80.00%; seed 0, commit b1f56263
score      reverse_positions/positions=rotary: test exact match: 93.20%; in_range exact match:
           99.90%; longer exact match: 60.40%; seed 0, commit b1f56263
"""

from ml_collections import ConfigDict

from configs import defaults


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = defaults.new("translation", "reverse", steps=2_000)
    batch, model = config.batch, config.model

    batch.bucket_lengths = (14, 20, 26)

    model.positions = "sinusoidal"
    model.max_length = 32
    model.width = 64
    model.hidden = 128
    model.tie = "all"

    if defaults.is_tiny(form):
        defaults.make_tiny(config)
        batch.tokens = 320
    return config

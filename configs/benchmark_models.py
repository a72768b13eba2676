"""Benchmark of models: training beside PyTorch, translation beside CTranslate2.

command    python run.py --mode=benchmark --config=configs/benchmark_models.py
           with --config.run=FOLDER for translation, a run of the main job with post-norm layers and
           sinusoidal positions, which CTranslate2 has too:
           python run.py --config.model.norm_placement=post --config.model.positions=sinusoidal
           --workdir=FOLDER
hardware   two CPU cores
time       6 minutes
score      docs/MODELS.md
"""

from ml_collections import ConfigDict

from configs import char_lm
from configs.defaults import is_tiny


def get_config(form: str = "") -> ConfigDict:
    """The benchmark, or its tiny form that ends in seconds."""
    config = ConfigDict()
    config.task = "model_benchmark"
    config.parts = "all"  # or one of: training translating
    config.page = ""  # a .md file: the report is written there too, its figures beside it as JSON

    # A language model on characters, in our training and in a PyTorch loop.
    config.characters = char_lm.get_config(form)
    config.characters.train.decay_all = True  # as in the PyTorch loop

    # A trained translator, whose test split is translated.
    config.run = ""
    config.seconds = 30.0  # of the timed calls of each library
    config.rounds = 10  # at most

    if is_tiny(form):
        config.characters.train.update({"steps": 4, "warmup_steps": 2})
        config.seconds, config.rounds = 0.2, 2
    return config

"""The benchmark of models: decoding, depth, and learning beside a plain PyTorch loop.

command    python run.py --mode=benchmark --config=configs/benchmark_models.py
hardware   two CPU cores
time       9 minutes
score      docs/MODELS.md
"""

from ml_collections import ConfigDict

from configs import char_lm, defaults, multi30k
from configs.forms import FULL, is_tiny


def get_config(form: str = FULL) -> ConfigDict:
    """The benchmark, or its tiny form that ends in seconds."""
    config = ConfigDict()
    config.task = "model_benchmark"
    config.parts = "all"  # or some of: decoding depth characters training translating
    config.rounds = 10  # at most
    config.page = ""  # where else to write the report

    # An encoder-decoder of the size of the main job says so many tokens of so many sources.
    config.decoding = decoding = ConfigDict()
    decoding.model = defaults.transformer()
    decoding.model.max_length = 64
    decoding.length = 64
    decoding.batches = (1, 32)
    decoding.num_beams = 5
    decoding.seconds = 10.0  # that one way may take

    # A language model of the size of char_lm, less and more deep.
    config.depth = depth = ConfigDict()
    small = char_lm.get_config(form)
    small.train.decay_all = True  # as in the PyTorch loop
    depth.model = small.model.copy_and_resolve_references()
    depth.train = small.train.copy_and_resolve_references()
    depth.seed = 0
    depth.batch, depth.length = 12, 64
    depth.microbatches = small.batch.microbatches
    depth.layers = (4, 24)
    depth.compilations = 3
    depth.seconds = 5.0

    # That language model, as its own configuration says.
    config.characters = small

    # Multi30k, as its own configuration says; without its folder nothing is translated.
    config.translation = translation = multi30k.get_config(form)
    translation.data.path = ""
    config.training = ConfigDict()
    config.training.steps = 15  # of each
    config.translating = translating = ConfigDict()
    translating.workdir = ""  # a run of that configuration, as which to translate
    translating.length = 20  # without one parameters are random, and all answers so many tokens
    translating.seconds = 30.0  # that one way may take

    if is_tiny(form):
        config.rounds = 2
        decoding.model.update({"width": 32, "hidden": 48, "max_length": 8})
        decoding.length, decoding.batches, decoding.num_beams, decoding.seconds = 8, (2,), 2, 0.2
        depth.model.max_length = 8
        depth.batch, depth.length, depth.layers = 2, 8, (1, 2)
        depth.compilations, depth.seconds = 1, 0.2
        small.train.steps, small.train.warmup_steps = 4, 2
        config.training.steps = 2
        translating.length, translating.seconds = 5, 0.2
    return config

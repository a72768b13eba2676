"""Benchmark of models: decoding, depth, and training beside a plain PyTorch loop.

command    python run.py --mode=benchmark --config=configs/benchmark_models.py
hardware   two CPU cores
time       17 minutes
score      docs/MODELS.md
"""

from ml_collections import ConfigDict

from configs import char_lm, defaults, multi30k


def get_config(form: str = "") -> ConfigDict:
    """The benchmark, or its tiny form that ends in seconds."""
    config = ConfigDict()
    config.task = "model_benchmark"
    config.parts = "all"  # or some of: decoding depth characters training translating
    config.rounds = 10  # at most
    config.page = ""  # a .md file: the report is written there too, its figures beside it as JSON

    # An encoder-decoder of the size of the main job generates `length` tokens for each source.
    config.decoding = decoding = ConfigDict()
    decoding.model = defaults.transformer()
    decoding.model.max_length = 64
    decoding.length = 64
    decoding.batches = (1, 32)
    decoding.num_beams = 5
    decoding.seconds = 10.0  # of the timed calls of one measurement

    # A language model with the sizes of char_lm and different depths.
    config.depth = depth = ConfigDict()
    small = char_lm.get_config(form)
    small.train.decay_all = True  # as in the PyTorch loop
    depth.model = small.model.copy_and_resolve_references()
    depth.train = small.train.copy_and_resolve_references()
    depth.seed = 0
    depth.batch, depth.length = 12, 64
    depth.layers = (4, 24)
    depth.compilations = 3
    depth.seconds = 5.0  # as above

    # That language model with its configuration.
    config.characters = small

    # Multi30k, by the model and the schedule of Wu et al. 2021, which the peers can have too;
    # without its folder, the parts that need it are left out.
    config.translation = translation = multi30k.get_config(form)
    translation.data.path = ""
    translation.model.update({"norm_placement": "post", "positions": "sinusoidal"})
    translation.train.schedule = "inverse_sqrt"
    config.training = ConfigDict()
    config.training.steps = 15  # of each
    config.translating = translating = ConfigDict()
    translating.workdir = ""  # a run of that model on that text, for its recipe and parameters
    translating.length = 20  # tokens of each answer without a workdir: parameters are random
    translating.seconds = 30.0  # of the timed calls of one measurement

    if defaults.is_tiny(form):
        config.rounds = 2
        decoding.model.update({"width": 32, "hidden": 48, "max_length": 8})
        decoding.model.encoder_layers = decoding.model.decoder_layers = 1
        decoding.length, decoding.batches, decoding.num_beams, decoding.seconds = 8, (2,), 2, 0.2
        depth.model.max_length = 8
        depth.batch, depth.length, depth.layers = 2, 8, (1, 2)
        depth.compilations, depth.seconds = 1, 0.2
        small.train.steps, small.train.warmup_steps = 4, 2
        small.model.decoder_layers = 2  # stacked, as in the full form
        config.training.steps = 2
        translating.length, translating.seconds = 5, 0.2
    else:
        translation.batch.tokens = 8_192
    return config

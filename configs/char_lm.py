"""Characters: a small GPT learns to write, letter by letter.

The sizes, the batch and the steps are those of the CPU setting of nanoGPT; positions are rotary, so
that the model can write on without end. Without `data.path` the text is sentences of the toy
language.

command    python run.py --config=configs/char_lm.py
hardware   two CPU cores
time       134 s of training
score      perplexity 2.12 of a letter on our text; validation loss 1.669 on tiny Shakespeare, by
           --config.data.path=FILE (published for this size and these steps: 1.88; seed 0)
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.forms import FULL, is_tiny


def get_config(form: str = FULL) -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = ConfigDict()
    config.experiment = "language_model"
    config.seed = 0

    config.data = data = ConfigDict()
    data.name = "characters"
    data.path = ""  # of a text file; ours, if none is named
    data.seed = 0
    data.sentences = 20_000
    data.context = 64

    config.model = model = defaults.decoder()
    model.width = 128
    model.hidden = 512
    model.activation = "gelu"
    model.decoder_layers = 4
    model.max_length = 64
    model.use_bias = False

    config.train = train = defaults.training(2_000)
    train.batch_tokens = 12 * 64
    train.microbatches = 2
    train.learning_rate = 2e-3
    train.beta2 = 0.99
    train.evaluate_every = 1_000
    train.sample_every = 1_000
    train.checkpoint_every = 1_000

    config.decoding = defaults.sampling()

    if is_tiny(form):
        defaults.make_short(train)
        data.sentences = 200
        data.context = 24
        train.batch_tokens = 240
        model.update({"width": 32, "hidden": 48, "decoder_layers": 2, "dropout": 0.1})
        config.decoding.max_tokens = 20
    return config

"""Characters: a small GPT learns to write, letter by letter.

The sizes, the batch and the steps are those of the CPU setting of nanoGPT; positions are rotary, so
that the model can generate text of any length. Without `data.path` the text is sentences of the
toy language.

command    python run.py --config=configs/char_lm.py
hardware   two CPU cores
time       1.6 min of training
score      char_lm_shakespeare: validation loss: 1.605 ± 0.011 (for comparison: 1.88 (nanoGPT:
           random windows of the last tenth of the text; here all of the first half of it)); seeds
           0, 1, 2, commit 4ee3182a
"""

from ml_collections import ConfigDict

from configs import defaults


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = defaults.new("language_model", "characters", steps=2_000)
    data, batch, model, train = config.data, config.batch, config.model, config.train

    reported = "1.88 (nanoGPT: random windows of the last tenth of the text; here all of the first "
    config.literature = ConfigDict({"validation": {"loss": reported + "half of it)"}})

    batch.tokens = 12 * 64
    batch.row_length = 64

    model.width = 128
    model.hidden = 512
    model.activation = "gelu"
    model.decoder_layers = 4
    model.max_length = 64
    model.use_bias = False

    train.learning_rate = 2e-3
    train.beta2 = 0.99

    if defaults.is_tiny(form):
        defaults.make_tiny(config)
        data.sentences = 200
        batch.row_length = 24
        batch.tokens = 240
        config.decoding.max_tokens = 20
    return config

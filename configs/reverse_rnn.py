"""Reverse with a recurrent model: an LSTM with multiplicative attention, as in JoeyNMT's tutorial.

command    python run.py --config=configs/reverse_rnn.py
hardware   two CPU cores
time       1.5 min of training
score      test BLEU: 99.68 (for comparison: 95.19 (JoeyNMT tutorial: other sequences, checkpoint
           chosen by validation)); seed 0, commit b1f56263
"""

from ml_collections import ConfigDict

from configs import defaults, reverse


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = reverse.get_config(form)
    reported = "95.19 (JoeyNMT tutorial: other sequences, checkpoint chosen by validation)"
    config.literature = ConfigDict({"test": {"bleu": reported}})
    config.architecture = "recurrent"
    config.model = model = defaults.recurrent()
    model.embedding_width = 16
    model.hidden = 64
    model.cell = "lstm"
    model.attention = "multiplicative"
    model.max_length = 32

    if defaults.is_tiny(form):
        defaults.make_tiny(config)
    return config

"""Multi30k, German to English, by recurrent models with and without attention.

The models are those of bentrevett/pytorch-seq2seq, notebooks 2 to 4: a bidirectional GRU reads,
another writes, with additive attention (Bahdanau et al. 2015) or from the last state alone. Text
and training are those of `configs/multi30k_deen.py`, but that labels are not smoothed, and for five
epochs: recurrent models cost more a step, and overfit sooner.

command    python run.py --mode=sweep --config=configs/multi30k_rnn.py --config.data.path=FOLDER
           --grid.model.attention=additive,none
hardware   two CPU cores
time       45.0 min of training
score      multi30k_rnn/attention=additive: test tokenized BLEU: 35.75 (for comparison: 28.11 with
           attention (bentrevett/pytorch-seq2seq, notebook 4: whole words, epoch chosen by
           validation loss)); seed 0, commit 49694912
score      multi30k_rnn/attention=none: test tokenized BLEU: 22.93 (for comparison: 28.11 with
           attention (bentrevett/pytorch-seq2seq, notebook 4: whole words, epoch chosen by
           validation loss)); seed 0, commit aac6abd2
"""

from ml_collections import ConfigDict

from configs import defaults, multi30k_deen


def get_config(form: str = "") -> ConfigDict:
    """The model with additive attention, or its tiny form that ends in seconds."""
    config = multi30k_deen.get_config(form)
    config.architecture = "recurrent"
    config.batch.packed = False
    longest = config.model.max_length
    config.model = model = defaults.recurrent()
    model.attention, model.max_length = "additive", longest
    reported = "28.11 with attention (bentrevett/pytorch-seq2seq, notebook 4: whole words, epoch "
    config.literature.test.tok_bleu = reported + "chosen by validation loss)"
    config.train.label_smoothing = 0.0
    if defaults.is_tiny(form):
        defaults.make_tiny(config)
    else:
        model.update({"embedding_width": 256, "hidden": 512, "dropout": 0.5})
        config.train.steps, config.train.warmup_steps = 1_200, 200
    return config

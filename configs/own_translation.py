"""Your own parallel text, as subwords: a folder, two files, or one file with a tab in each line.

`data.path` is a folder of train.en, train.de, validation.en and so on; "corpus" for corpus.en and
corpus.de; or corpus.tsv. The last two are divided: of each 20 pairs, one is for validation and
one for the test. `data.source` and `data.target` are the languages in the names of files. The
number of subwords depends on the text. Lines without a text and long ones are left out.

command    python run.py --config=configs/own_translation.py --config.data.path=PATH
           with --config.train.duration="20 epochs" for another length; the warm-up is made to fit
hardware   two CPU cores
time       not run
score      not run
"""

from ml_collections import ConfigDict

from configs import defaults


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = defaults.new("translation", "parallel", steps=2_000)
    data, batch, model = config.data, config.batch, config.model

    data.faults = "drop"
    data.longest = 40
    config.text.size = 0  # by the text

    batch.packed = True
    batch.tokens = 2_048

    model.max_length = 160
    model.tie = "all"
    model.dropout = 0.1

    config.train.label_smoothing = 0.1

    if defaults.is_tiny(form):
        defaults.make_tiny(config)
        data.path = str(defaults.SAMPLES / "captions" / "train")
        batch.tokens = 512
    return config

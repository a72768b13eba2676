"""A translation dataset of TFDS by its name: TED talks, Portuguese to English, as subwords.

The talks are those of Qi et al. 2018, lowercased and tokenized, 52,000 pairs to train. A dataset is
prepared once, on a machine with TensorFlow and a network; reading it needs neither:

    tfds build ted_hrlr_translate/pt_to_en --file_format=array_record --data_dir=FOLDER

command    python run.py --config=configs/tfds_translation.py --config.data.path=FOLDER
hardware   two CPU cores
time       not run
score      not run
"""

from ml_collections import ConfigDict

from configs import defaults, multi30k
from experiments.config.build import as_tree
from experiments.data.tfds import TfdsData


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = multi30k.get_config(form)
    del config.literature
    config.data = data = ConfigDict(as_tree(TfdsData()))
    data.dataset = "ted_hrlr_translate/pt_to_en"  # newest version; another one after a colon
    data.path = ""  # folder of all datasets; "": that of TFDS, ~/tensorflow_datasets
    data.source = "pt"
    data.target = "en"
    data.tokenized = True
    data.splits.train = "train"  # or a part of one, as "train[:90%]"
    data.faults = "drop"
    if defaults.is_tiny(form):
        data.path = str(defaults.SAMPLES / "tfds")
        data.dataset = "captions/en_de"
        data.source, data.target = "en", "de"
        data.splits.update(
            {"train": "train[:40]", "validation": "train[40:46]", "test": "train[46:]"}
        )
    else:  # talks have longer sentences than captions
        config.batch.bucket_lengths = (16, 24, 32, 48, 64, 96)
        config.model.max_length = 256
        config.batch.tokens, config.train.steps = 8_192, 8_000
    return config

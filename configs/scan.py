"""SCAN: map commands to actions, as "jump twice" to I_JUMP I_JUMP.

The files are those of Lake and Baroni 2018; `data.path` is their folder.

command    python run.py --config=configs/scan.py --config.data.path=FOLDER
hardware   two CPU cores
time       3.6 min of training
score      test exact match: 99.90% ± 0.06% (for comparison: about 100 % (Lake and Baroni 2018:
           recurrent models)); seeds 0, 1, 2, commit 64b3f962
"""

from ml_collections import ConfigDict

from configs import defaults


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = defaults.new("translation", "scan", steps=3_000)
    batch, model = config.batch, config.model

    reported = "about 100 % (Lake and Baroni 2018: recurrent models)"
    config.literature = ConfigDict({"test": {"exact_match": reported}})

    batch.bucket_lengths = (12, 20, 30)
    batch.tokens = 2_048

    model.positions = "relative"
    model.max_length = 52

    if defaults.is_tiny(form):
        defaults.make_tiny(config)
        config.data.path = str(defaults.SAMPLES / "scan")
        config.data.validation = 6
        batch.tokens = 520
    return config

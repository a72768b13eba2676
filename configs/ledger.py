"""Results of the runs of a folder, beside published ones.

command    python run.py --mode=ledger --config=configs/ledger.py
hardware   any
time       seconds
score      experiments/RESULTS.md
"""

from ml_collections import ConfigDict

from configs import defaults


def get_config(form: str = "") -> ConfigDict:
    """Return the files that are read and written; the tiny form is the same."""
    defaults.is_tiny(form)  # or it is refused
    config = ConfigDict()
    config.task = "ledger"
    config.folder = "workdirs"
    config.results = "results"
    config.documents = ("README.md", "docs/**/*.md", "experiments/RESULTS.md")
    config.configs = "configs"
    return config

"""The ledger: what the runs of a folder achieved, beside what was published.

command    python run.py --mode=ledger --config=configs/ledger.py
hardware   any
time       seconds
score      experiments/RESULTS.md
"""

from ml_collections import ConfigDict

from configs.forms import FULL, is_tiny


def get_config(form: str = FULL) -> ConfigDict:
    """The ledger; its tiny form is the same."""
    is_tiny(form)  # or it is refused
    config = ConfigDict()
    config.task = "ledger"
    config.folder = "workdirs"
    config.page = "experiments/RESULTS.md"
    return config

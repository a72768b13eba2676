"""List the runs of a folder with their scores; nothing is written."""

from pathlib import Path

from ml_collections import ConfigDict

from experiments.errors import UsageError
from experiments.records import markdown_table, read_runs, score_rows
from experiments.workdir import Workdir


def ledger(config: ConfigDict, workdir: Workdir, cache: Path) -> None:
    """Print a row for each split of the runs below a folder, of several seeds the mean.

    Config and cache are unused.

    Raises:
        UsageError: no such folder, or no run in it that was measured.
    """
    del config, cache
    if not workdir.path.is_dir():
        raise UsageError(f"there is no folder {workdir.path}: name one of runs by --workdir")
    rows = score_rows(read_runs(workdir.path), in_one_cell=True)
    print(markdown_table(rows), end="")

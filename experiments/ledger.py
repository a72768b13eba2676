"""List the runs of a folder with their scores; nothing is written."""

from pathlib import Path

from experiments.errors import UsageError
from experiments.records import markdown_table, read_runs, score_rows


def ledger(folder: Path) -> None:
    """Print a row for each split of the runs below a folder, of several seeds the mean.

    Raises:
        UsageError: no such folder, or no run in it that was measured.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}: name a folder of workdirs by --workdir")
    print(markdown_table(score_rows(read_runs(folder))), end="")

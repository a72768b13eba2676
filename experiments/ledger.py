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
    rows = []
    for name, runs in read_runs(workdir.path).items():
        for row in score_rows({name: runs}):
            about = {key: row.pop(key) for key in ("run", "seeds", "minutes", "split")}
            scores = ", ".join(f"{score} {text}" for score, text in row.items() if text)
            rows.append(about | {"scores": scores})
    print(markdown_table(rows), end="")

"""The laboratory: everything that needs data, a clock or a disk."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.trained import Run

__all__ = ["load_run"]


def load_run(folder: Path | str, *, cache: Path | str = ".cache") -> "Run":
    """Return a trained run: its `model`, `tokenizers` and `config`, and answers to lines.

    For instance `load_run("workdirs/toy_translation").translate(["Jane visits Africa"])`.

    Args:
        folder: the workdir of the run.
        cache: folder of generated data, which is not read here.

    Raises:
        experiments.errors.UsageError: a folder without a trained model, or a damaged one.
    """
    from experiments.trained import Run
    from experiments.workdir import Workdir

    return Run.load(Workdir(folder), Path(cache))

"""Training and evaluation: everything that needs data, a clock or a disk.

Importing it registers the datasets, tasks, losses and metrics that configs name.
"""

from pathlib import Path

try:
    from experiments import data, tasks
    from experiments.trained import Run
    from experiments.workdir import Workdir
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in ("attention", "configs", "experiments"):
        raise
    hint = f'{error}: experiments need an extra: pip install "attention-jax[experiments]"'
    raise ModuleNotFoundError(hint, name=error.name) from error

__all__ = ["data", "load_run", "tasks"]


def load_run(folder: Path | str, *, cache: Path | str = ".cache") -> Run:
    """Return a trained run: its `model`, `tokenizers` and `config`, and answers to lines.

    For instance `load_run("workdirs/toy_translation").translate(["Jane visits Africa"])`.

    Args:
        folder: the workdir of the run.
        cache: folder of generated data, which is not read here.

    Raises:
        experiments.errors.UsageError: a folder without a trained model, or a damaged one.
    """
    return Run.load(Workdir(folder), Path(cache))

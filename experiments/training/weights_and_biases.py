"""Metrics of a run on Weights & Biases; `wandb` is imported when it is used."""

from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from experiments.errors import UsageError
from experiments.files import write_whole


def import_wandb() -> Any:  # noqa: ANN401 - a module
    """Import `wandb`.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return import_module("wandb")
    except ModuleNotFoundError as error:
        raise UsageError('--wandb needs an extra: pip install "attention[wandb]"') from error


def start_wandb(project: str, folder: Path, config: dict[str, Any]) -> Any:  # noqa: ANN401 - a run
    """Start the run of a workdir on Weights & Biases, or continue it.

    Args:
        project: name of the project.
        folder: the workdir, which contains the id of the run.
        config: of the run.

    Raises:
        UsageError: it cannot start, for instance without a login.
    """
    wandb, path = import_wandb(), folder / "wandb.txt"
    if not path.exists():
        write_whole(path, uuid4().hex)
    try:
        return wandb.init(
            project=project,
            name=folder.name,
            id=path.read_text(encoding="ascii"),
            resume="allow",
            dir=str(folder),
            config=config,
        )
    except Exception as error:  # of the network, the login or the service
        reason = " ".join(str(error).split())
        raise UsageError(f"--wandb={project} cannot start: {reason}") from error

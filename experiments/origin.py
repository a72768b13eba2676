"""Origin of a result: command, commit, machine and date."""

import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from experiments.config.files import REPOSITORY
from experiments.devices import environment


def origin() -> dict[str, str]:
    """Return the command of this process, the commit of this code, this machine and the date."""
    where = environment()
    return {
        "command": command(),
        "commit": commit(REPOSITORY),
        "machine": f"{where['device']}, {where['cores']} cores, jax {where['jax']}",
        "date": datetime.now(UTC).date().isoformat(),
    }


def command() -> str:
    """Return the command of this process, without the folders of this machine."""
    return shlex.join(["python", *map(without_place, sys.argv)])


def without_place(argument: str) -> str:
    """Return an argument of a command, without the folders of this machine.

    Paths in the repository are relative to it. Outside of it, programs, configurations and workdirs
    keep their name, and others are FILE or FOLDER. The path of data is FILE or FOLDER everywhere.
    """
    is_flag = argument.startswith("-")
    flag, equals, value = argument.partition("=") if is_flag else ("", "", argument)
    path = Path(value)
    if path.is_relative_to(REPOSITORY):
        value = str(path.relative_to(REPOSITORY))
    is_outside = Path(value).is_absolute() or ".." in path.parts
    if is_outside and (path.suffix.startswith(".py") or flag == "--workdir"):
        value = path.name
    elif is_outside or (flag.endswith(".path") and value):
        value = "FILE" if path.is_file() else "FOLDER"
    return f"{flag}{equals}{value}"


def commit(repository: Path) -> str:
    """Return the checked-out commit, with a + if files were changed; "unknown" without git."""
    try:
        number = _git(repository, "rev-parse", "--short", "HEAD")
        return f"{number}+" if _git(repository, "status", "--porcelain", "-uno") else number
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(repository: Path, *arguments: str) -> str:
    # A command that ends early, as on a full disk, must not leave a lock in the repository.
    command = ["git", "--no-optional-locks", "-C", str(repository), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

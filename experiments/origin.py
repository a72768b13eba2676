"""Origin of a result: command, commit, machine and date."""

import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from experiments.config_files import REPOSITORY
from experiments.environment import environment


def origin() -> dict[str, str]:
    """Return the command of this process, the commit of this code, this machine and the date."""
    where = environment()
    return {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit(REPOSITORY),
        "machine": f"{where['device']}, {where['cores']} cores, jax {where['jax']}",
        "date": datetime.now(UTC).date().isoformat(),
    }


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

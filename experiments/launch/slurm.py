"""Jobs of Slurm with the options of a batch script, which continue after their time limit."""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.errors import UsageError

if TYPE_CHECKING:
    import submitit

SCRIPT = Path(__file__).with_suffix(".sbatch")
OPTION = re.compile(r"#SBATCH --([a-z0-9-]+)(?:=([^\s\"'#]+))?")
NEEDED = "nodes", "time"  # submitit would choose one node and five minutes
OF_SUBMITIT = "array", "error", "job-name", "open-mode", "output"
SAVE_SECONDS = 120  # from the signal to the time limit, if the batch script does not give them
MAX_REQUEUES = 100  # submitit counts each signal, since it does not read --time of the script


class ResumableCommand:
    """A command that saves its state at SIGTERM, and continues there when it is called again.

    submitit calls `checkpoint` in the first task of a job, before the time limit, and then requeues
    the job. The commands of the other tasks stop with that of the first one.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Take the command."""
        self._command = [*command]
        self._process: int | None = None

    def __call__(self) -> None:
        """Run the command.

        Raises:
            CalledProcessError: the command failed.
        """
        import submitit

        # Slurm may send the signal of submitit to all processes of a job; it would end the command.
        blocked = [signal.Signals[f"SIG{submitit.JobEnvironment.USR_SIG}"]]
        # Not `subprocess`: its `wait` holds a lock, and `checkpoint` interrupts it in this thread.
        self._process = os.posix_spawnp(
            self._command[0], self._command, os.environ, setsigmask=blocked
        )
        _, status = os.waitpid(self._process, 0)
        if code := os.waitstatus_to_exitcode(status):
            raise subprocess.CalledProcessError(code, self._command)

    def checkpoint(self) -> "submitit.helpers.DelayedSubmission":
        """Stop the command, wait until it has saved its state, and return what continues it."""
        import submitit

        if self._process is not None:
            with suppress(ProcessLookupError, ChildProcessError):  # it has just ended
                os.kill(self._process, signal.SIGTERM)
                os.waitpid(self._process, 0)
        return submitit.helpers.DelayedSubmission(ResumableCommand(self._command))


def script_of(cluster: str) -> Path:
    """Return the batch script of `--cluster`: that of this folder for "slurm", else the path."""
    return SCRIPT if cluster == "slurm" else Path(cluster)


def read_options(path: Path) -> dict[str, str | bool]:
    """Return the options of sbatch in a batch script.

    Args:
        path: of the script, with lines `#SBATCH --NAME=VALUE` or `#SBATCH --NAME` before its first
            command.

    Returns:
        Values by name, without hyphens; True for an option without a value. Options that submitit
        sets, such as job-name and output, are left out.

    Raises:
        UsageError: there is no such file; another `#SBATCH` line; no --nodes or no --time.
    """
    if not path.is_file():
        raise UsageError(f"{path} is no file: --cluster takes a batch script of Slurm")
    options = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            break  # sbatch reads no options after a command
        if not line.startswith("#SBATCH"):
            continue
        found = OPTION.fullmatch(line.rstrip())
        if found is None:
            raise UsageError(
                f"{path}, line {number}: options are written as '#SBATCH --NAME=VALUE' or '#SBATCH "
                f"--NAME', got {line!r}"
            )
        options[found[1]] = found[2] or True
    for name in NEEDED:
        if name not in options:
            raise UsageError(f"{path} needs a line '#SBATCH --{name}=VALUE'")
    return {name: value for name, value in options.items() if name not in OF_SUBMITIT}


def slurm_executor(
    folder: Path, name: str, repository: Path, options: Mapping[str, str | bool]
) -> "submitit.AutoExecutor":
    """Return an executor of submitit whose jobs have the options of a batch script.

    Args:
        folder: of the files of the jobs.
        name: of the jobs.
        repository: that contains this package; jobs import it.
        options: those of `read_options`. The time of `signal` is kept, with the signal of submitit.
    """
    import submitit

    _, _, seconds = str(options.get("signal", "")).partition("@")
    own = {"signal": f"{submitit.JobEnvironment.USR_SIG}@{seconds or SAVE_SECONDS}"}
    executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=MAX_REQUEUES)
    executor.update_parameters(
        name=name,
        slurm_setup=[
            # Since Slurm 22.05, srun does not take over the CPUs of a task.
            "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}",
            f"export PYTHONPATH={shlex.quote(str(repository))}${{PYTHONPATH:+:$PYTHONPATH}}",
        ],
        slurm_srun_args=["--kill-on-bad-exit=1"],
        slurm_additional_parameters={**options, **own},
    )
    return executor

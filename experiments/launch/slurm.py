"""Jobs of Slurm with the options of `slurm.sbatch`, which are queued again until their run ends."""

import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from experiments.errors import UsageError

if TYPE_CHECKING:
    import submitit

FILE = Path(__file__).with_suffix(".sbatch")
OPTION, SRUN = "#SBATCH --", "exec srun "


class Launch(NamedTuple):
    """What a batch file of Slurm asks for.

    Attributes:
        options: of sbatch, without their hyphens; True for one without a value.
        setup: lines of the shell before the processes are started.
        srun: options of srun.
    """

    options: dict[str, str | bool]
    setup: list[str]
    srun: list[str]


class QueuedRun:
    """A command that trains a run, in each task of a job.

    Slurm sends SIGTERM to all processes of a task, before the time limit and at a preemption. The
    command then saves its state, and the first task queues the job again, which continues there. A
    job that was cancelled is not queued again.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Take a command, which continues the run if it is called again."""
        self._command = [*command]

    def __call__(self) -> None:
        """Run the command.

        Raises:
            CalledProcessError: the command failed.
        """
        stopped = []
        # submitit ignores SIGTERM; its own signal, after which it queues a job again without
        # waiting for the command, is not sent.
        signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
        process = subprocess.run(self._command)
        if not stopped:
            process.check_returncode()
        elif os.environ.get("SLURM_PROCID", "0") == "0" and _is_running():
            subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
            raise SystemExit  # without a result, so that submitit waits for the continued job


def read_launch(path: Path = FILE) -> Launch:
    """Read the options, the setup and the options of srun of a batch file.

    Raises:
        UsageError: a file without a line that begins with `exec srun`.
    """
    lines = [line.strip() for line in path.read_text().splitlines()]
    given = (line.removeprefix(OPTION).partition("=") for line in lines if line.startswith(OPTION))
    options = {name: value if equals else True for name, equals, value in given}
    commands = [line for line in lines if line and not line.startswith("#")]
    if not commands or not commands[-1].startswith(SRUN):
        raise UsageError(f"{path} must end with a line that begins with {SRUN.strip()!r}")
    *setup, last = commands
    words = shlex.split(last.removeprefix(SRUN))
    command = next(place for place, word in enumerate(words) if not word.startswith("-"))
    return Launch(options, setup, words[:command])


def slurm_executor(
    folder: Path, name: str, repository: Path, launch: Launch
) -> "submitit.AutoExecutor":
    """Return an executor of submitit whose jobs have the options of a batch file.

    Args:
        folder: of the files of the jobs.
        name: of the jobs.
        repository: that contains this package; jobs import it.
        launch: what the batch file asks for.
    """
    import submitit

    options = {key: value for key, value in launch.options.items() if key != "job-name"}
    executor = submitit.AutoExecutor(folder, cluster="slurm")
    executor.update_parameters(
        name=name,
        nodes=int(options.pop("nodes", 1)),
        tasks_per_node=int(options.pop("ntasks-per-node", 1)),
        slurm_setup=[
            *launch.setup,
            f"export PYTHONPATH={shlex.quote(str(repository))}${{PYTHONPATH:+:$PYTHONPATH}}",
        ],
        slurm_srun_args=launch.srun,
        slurm_additional_parameters=options,  # in place of those of submitit, as its signal
    )
    return executor


def _is_running() -> bool:
    """Return whether Slurm still runs this job: it was not cancelled."""
    command = ["squeue", "--noheader", "--format=%T", f"--jobs={os.environ['SLURM_JOB_ID']}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return found.stdout.strip() == "RUNNING"

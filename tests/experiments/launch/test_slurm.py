"""Jobs of Slurm, with scripts in place of its commands."""

import os
import subprocess
import sys

import pytest

from experiments.config_files import REPOSITORY
from experiments.errors import UsageError
from experiments.launch.slurm import FILE, Launch, QueuedRun, read_launch, slurm_executor


def test_launch_of_the_batch_file():
    found = read_launch()
    assert found.options["signal"] == "TERM@120" and found.options["requeue"] is True
    assert found.options["nodes"] == "2" and found.options["ntasks-per-node"] == "8"
    assert found.setup == ["export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}"]
    assert found.srun == ["--kill-on-bad-exit=1", "--label"]
    assert len(found.options) == FILE.read_text().count("#SBATCH --")


def test_batch_file_without_srun_is_refused(tmp_path):
    (tmp_path / "job").write_text("#SBATCH --nodes=1\npython run.py\n")
    with pytest.raises(UsageError, match="must end with a line that begins with 'exec srun'"):
        read_launch(tmp_path / "job")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A folder where each command of Slurm writes what it was called with."""
    state = tmp_path / "state"
    state.write_text("RUNNING")
    scripts = {
        "sbatch": f'cp "$1" {tmp_path}/submitted; echo Submitted batch job 12',
        "srun": f'while [ "$1" != {sys.executable} ]; do shift; done; exec "$@"',
        "squeue": f"cat {state}",
        "scontrol": f'echo "$@" >> {tmp_path}/scontrol',
    }
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SUBMITIT_LOG_LEVEL", "NOCONFIG")  # or it closes the streams of pytest
    return tmp_path


def test_jobs_of_a_sweep_have_the_options_of_the_batch_file(slurm):
    pytest.importorskip("submitit", reason="the extra [cluster] is not installed")
    executor = slurm_executor(slurm / "jobs", "lengths", REPOSITORY, read_launch())
    jobs = executor.submit_array([QueuedRun(["true"]), QueuedRun(["false"])])
    assert [job.job_id for job in jobs] == ["12_0", "12_1"] and jobs[0].num_tasks == 16
    lines = (slurm / "submitted").read_text().splitlines()
    own = [line.strip() for line in FILE.read_text().splitlines() if line.startswith("#SBATCH --")]
    for line in own:
        name = line.partition("=")[0]
        expected = "#SBATCH --job-name=lengths" if name == "#SBATCH --job-name" else line
        assert [each for each in lines if each.partition("=")[0] == name] == [expected]
    assert any(line.startswith("#SBATCH --array=0-1") for line in lines)
    assert "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}" in lines
    assert f"export PYTHONPATH={REPOSITORY}${{PYTHONPATH:+:$PYTHONPATH}}" in lines
    (command,) = (line for line in lines if line.startswith("srun "))
    assert " --kill-on-bad-exit=1 --label " in command and "submitit.core._submit" in command


# Slurm sends SIGTERM to the processes of a task; this one ends by itself.
STOPPED = "import os, signal; os.kill(os.getppid(), signal.SIGTERM)"
TASK = """
import sys
from experiments.launch.slurm import QueuedRun
QueuedRun([sys.executable, "-c", {command!r}])()
print("ended")
"""


@pytest.mark.parametrize(
    ("command", "rank", "state", "expected"),
    [
        ("pass", 0, "RUNNING", ("ended", 0, False)),
        ("exit(3)", 0, "RUNNING", ("", 1, False)),
        (STOPPED, 0, "RUNNING", ("", 0, True)),  # without a result, for submitit to wait on
        (STOPPED, 0, "COMPLETING", ("ended", 0, False)),  # cancelled
        (STOPPED, 1, "RUNNING", ("ended", 0, False)),  # the first task does it
        (f"{STOPPED}; exit(143)", 0, "RUNNING", ("", 0, True)),  # in a measurement afterwards
    ],
    ids=["ended", "failed", "stopped", "cancelled", "second task", "killed"],
)
def test_stopped_job_is_queued_again(slurm, command, rank, state, expected):
    (slurm / "state").write_text(state)
    environment = os.environ | {"SLURM_PROCID": str(rank), "SLURM_JOB_ID": "12"}
    found = subprocess.run(
        [sys.executable, "-c", TASK.format(command=command)],
        env=environment | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    calls = slurm / "scontrol"
    is_queued = calls.exists() and calls.read_text() == "requeue 12\n"
    assert (found.stdout.strip(), found.returncode, is_queued) == expected, found.stderr


def test_sweep_waits_for_a_job_that_is_queued_again(slurm):
    """The first call of the command is stopped, the second one ends."""
    pytest.importorskip("submitit", reason="the extra [cluster] is not installed")
    code = f"import pathlib\nif not pathlib.Path({str(slurm / 'scontrol')!r}).exists(): {STOPPED}"
    executor = slurm_executor(slurm / "jobs", "sweep", REPOSITORY, Launch({}, [], []))
    job = executor.submit(QueuedRun([sys.executable, "-c", code]))
    environment = os.environ | {"SLURM_JOB_ID": "12", "SLURM_PROCID": "0"}
    results = []
    for _ in range(2):
        subprocess.run(["bash", slurm / "submitted"], env=environment, cwd=slurm, check=True)
        results.append(job.paths.result_pickle.exists())
    assert results == [False, True] and job.exception() is None
    assert (slurm / "scontrol").read_text() == "requeue 12\n"

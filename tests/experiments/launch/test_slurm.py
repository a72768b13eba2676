"""Jobs of Slurm, with scripts in place of its commands."""

import os
import signal
import subprocess
import sys
import time

import pytest

from experiments.config_files import REPOSITORY
from experiments.errors import UsageError
from experiments.launch.slurm import SCRIPT, ResumableCommand, read_options, slurm_executor

LINES = ["#!/bin/bash", "#SBATCH --nodes=1", "#SBATCH --time=1:00"]


def write_script(path, *lines):
    path.write_text("\n".join([*LINES, *lines]) + "\n")
    return path


def test_options_of_a_batch_script(tmp_path):
    lines = [
        "#SBATCH --exclusive",
        "##SBATCH -p cpu",
        "#SBATCH --output=log",
        "#SBATCH --gres=gpu:2 ",
    ]
    script = write_script(tmp_path / "job", *lines, "", "srun true", "#SBATCH --mem=1")
    expected = {"nodes": "1", "time": "1:00", "exclusive": True, "gres": "gpu:2"}
    assert read_options(script) == expected


def test_a_run_has_one_gpu_by_default():
    options = read_options(SCRIPT)
    names = "nodes", "ntasks-per-node", "gpus-per-node"
    assert [options[name] for name in names] == ["1", "1", "1"]


@pytest.mark.parametrize(
    "line",
    [
        "#SBATCH -p gpu",
        "#SBATCH --nodes 4",
        "#SBATCH --time=1:00 # short",
        '#SBATCH --comment="long"',
        "#SBATCH --mem=",
    ],
)
def test_other_lines_are_refused(tmp_path, line):
    script = write_script(tmp_path / "job.sbatch", line)
    with pytest.raises(
        UsageError, match=r"job[.]sbatch, line 4: options are written as"
    ) as refusal:
        read_options(script)
    assert repr(line) in str(refusal.value)


@pytest.mark.parametrize("name", ["nodes", "time"])
def test_options_that_submitit_would_choose_are_needed(tmp_path, name):
    script = tmp_path / "job.sbatch"
    script.write_text("\n".join(line for line in LINES if name not in line))
    with pytest.raises(UsageError, match=rf"job[.]sbatch needs a line '#SBATCH --{name}=VALUE'"):
        read_options(script)


def test_script_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"job[.]sbatch is no file"):
        read_options(tmp_path / "job.sbatch")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A folder where the commands of Slurm write what they were called with."""
    pytest.importorskip("submitit", reason="the extra [cluster] is not installed")
    scripts = {
        "sbatch": f'cp "$1" {tmp_path}/submitted; echo Submitted batch job 12',
        "srun": "exit 1",
        "scontrol": f'echo "$@" after $(cat {tmp_path}/state) >> {tmp_path}/scontrol',
    }
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SUBMITIT_LOG_LEVEL", "NOCONFIG")  # or it closes the streams of pytest
    return tmp_path


def test_jobs_of_a_sweep_have_the_options_of_the_batch_script(slurm):
    options = read_options(SCRIPT)
    executor = slurm_executor(slurm / "jobs", "lengths", REPOSITORY, options)
    jobs = executor.submit_array([ResumableCommand(["true"]), ResumableCommand(["false"])])
    assert [job.job_id for job in jobs] == ["12_0", "12_1"]
    lines = (slurm / "submitted").read_text().splitlines()
    own = [line for line in SCRIPT.read_text().splitlines() if line.startswith("#SBATCH --")]
    own[own.index("#SBATCH --job-name=attention")] = "#SBATCH --job-name=lengths"
    own[own.index("#SBATCH --signal=TERM@120")] = "#SBATCH --signal=USR2@120"
    for line in own:
        name = line.partition("=")[0]
        assert [each for each in lines if each.partition("=")[0] == name] == [line]
    assert any(line.startswith("#SBATCH --array=0-1") for line in lines)
    assert "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}" in lines
    assert f"export PYTHONPATH={REPOSITORY}${{PYTHONPATH:+:$PYTHONPATH}}" in lines
    (command,) = (line for line in lines if line.startswith("srun "))
    assert " --kill-on-bad-exit=1 " in command and "submitit.core._submit" in command


# Ends with status 0 at SIGTERM, as a training does, and is done when it is called again.
COMMAND = """
import pathlib, signal, sys, time
state = pathlib.Path({state!r})
def save(*_):
    time.sleep(0.2)
    state.write_text("saved")
    sys.exit()
signal.signal(signal.SIGTERM, save)
if state.exists():
    state.write_text("done")
    sys.exit()
state.with_name("started").touch()
signal.pause()
"""


def test_job_continues_after_its_time_limit(slurm):
    """Slurm sends the signal to all processes of the job, the command included."""
    state = slurm / "state"
    command = ResumableCommand([sys.executable, "-c", COMMAND.format(state=str(state))])
    executor = slurm_executor(slurm / "jobs", "sweep", REPOSITORY, read_options(SCRIPT))
    job = executor.submit_array([ResumableCommand(["true"]), command])[1]
    ids = {"SLURM_JOB_ID": "13", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "1"}
    environment = {**os.environ, **ids, "SUBMITIT_EXECUTOR": "slurm", "PYTHONPATH": str(REPOSITORY)}
    task = [sys.executable, "-m", "submitit.core._submit", str(slurm / "jobs")]
    with subprocess.Popen(task, env=environment, start_new_session=True) as process:
        try:
            deadline = time.monotonic() + 60
            while not (slurm / "started").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            os.killpg(process.pid, signal.SIGUSR2)
            assert process.wait(timeout=60)  # without a result, so that submitit waits
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    # This job of the array alone is requeued.
    assert (slurm / "scontrol").read_text() == "requeue 12_1 after saved\n"
    assert not job.paths.result_pickle.exists()
    assert vars(job.submission().function) == vars(command)
    subprocess.run(task, env=environment, check=True, timeout=60)
    assert state.read_text() == "done" and job.exception() is None


@pytest.mark.usefixtures("slurm")
def test_command_that_fails():
    with pytest.raises(subprocess.CalledProcessError):
        ResumableCommand(["false"])()


@pytest.mark.usefixtures("slurm")
def test_command_that_has_not_started_continues():
    again = ResumableCommand(["true"]).checkpoint()
    again.result()
    assert again.done()

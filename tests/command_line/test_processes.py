"""Two processes train as one with two devices, stop together, and one continues their run."""

import os
import signal
import socket
import time

from tests.child import forked, train

FLAGS = (
    "--config=word_vectors:tiny",
    "--config.mesh.data=2",
    "--config.train.log_every=4",
    "--config.train.steps=400",
    "--config.train.evaluate_every=200",
    "--config.train.checkpoint_every=200",
    "--config.train.sample_every=400",
)


def free_port():
    with socket.socket() as trial:
        trial.bind(("", 0))
        return trial.getsockname()[1]


def start(place, workdir, number):
    """Start processes, whose output is in the files 0.txt, 1.txt, …"""
    flags = f"--coordinator=localhost:{free_port()}", f"--num_processes={number}"
    processes = []
    for each in range(number):
        arguments = place, workdir, (*flags, f"--process_id={each}"), "", str(each), FLAGS
        processes.append(forked().Process(target=train, args=arguments))
        processes[-1].start()
    return processes


def test_two_processes_equal_one_and_continue_as_one(place, run_command):
    processes = start(place, "two", 2)
    metrics, deadline = place / "two" / "metrics.jsonl", time.monotonic() + 300
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(processes[1].pid, signal.SIGTERM)
    for process in processes:
        process.join(60)
    told = [(place / f"{each}.txt").read_text() for each in range(2)]
    assert [process.exitcode for process in processes] == [0, 0], told
    (step,) = [path.name for path in (place / "two" / "checkpoints").iterdir()]
    assert all(
        f"stopped at step {step} of 400: the same command continues" in each for each in told
    )
    status, _, error = run_command(*FLAGS, workdir="two")
    assert status == 0 and "processes 2 before, 1 now" in error
    assert run_command(*FLAGS, workdir="one")[0] == 0
    # The sum of two numbers has the same bits in any order, so even the text is equal.
    found, expected = ((place / name / "metrics.jsonl").read_text() for name in ("two", "one"))
    assert found == expected

"""The timeout of a step ends a process that is stuck in any part of a training."""

import subprocess
import sys

import pytest

STUCK = """
import time
from experiments.training.interruption import Interruption, stop_point
from experiments.training.watchdog import step_begins, step_timeout

def measure(parts):
    for seconds in parts:
        stop_point()
        time.sleep(seconds)

with step_timeout(1.0):
    with Interruption().raising():
        measure([0.6, 0.6, {stuck}])
    step_begins()
    time.sleep(0.6)
time.sleep(1.2)
print("ended")
"""


@pytest.mark.parametrize("stuck", [0, 99])
def test_a_part_of_a_measurement_is_a_step(stuck):
    """Parts that take longer only together than the timeout end no process."""
    command = [sys.executable, "-c", STUCK.format(stuck=stuck)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if stuck:
        assert found.returncode == 1 and "Timeout (0:00:01)!" in found.stderr
        assert "in measure" in found.stderr
    else:
        assert found.returncode == 0 and found.stdout == "ended\n", found.stderr

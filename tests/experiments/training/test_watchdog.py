"""The timeout of a step ends a process that is stuck in a part of a measurement."""

import faulthandler
import subprocess
import sys

import pytest

from experiments.training.watchdog import step_begins, step_timeout

STUCK = """
import time
from experiments.training.interruption import Interruption, stop_point
from experiments.training.watchdog import step_timeout

with step_timeout(1.0), Interruption().raising():
    for seconds in (0.6, 0.6, 99):
        stop_point()
        print(seconds, flush=True)
        time.sleep(seconds)
"""


def test_a_part_of_a_measurement_is_a_step():
    """Parts that take longer only together than the timeout end no process."""
    command = [sys.executable, "-c", STUCK]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1 and found.stdout == "0.6\n0.6\n99\n"
    assert "Timeout (0:00:01)!" in found.stderr and "in <module>" in found.stderr


def test_block_within_another_restores_its_timeout(monkeypatch):
    timers = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda each, **_: timers.append(each))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", timers.clear)
    with step_timeout(60):
        with pytest.raises(KeyError), step_timeout(7):
            step_begins()
            assert timers == [7, 7]
            raise KeyError
        assert timers == [60]
        with step_timeout(0):
            step_begins()
            assert not timers
        step_begins()
        assert timers == [60, 60]
    step_begins()
    assert not timers

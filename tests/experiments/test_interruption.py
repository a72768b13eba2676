"""Signals: the first asks a training to stop, and the second ends the process."""

import signal
import subprocess
import sys

import pytest

from experiments.interruption import interruption


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_is_a_request(number, capfd):
    before = signal.getsignal(number)
    with interruption() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
    assert capfd.readouterr().err.count("a second signal ends the process at once") == 1
    assert signal.getsignal(number) == before


def test_second_signal_ends_the_process():
    code = (
        "import signal\nfrom experiments.interruption import interruption\n"
        "with interruption():\n"
        "  signal.raise_signal(signal.SIGTERM)\n  signal.raise_signal(signal.SIGINT)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert process.returncode == -signal.SIGINT

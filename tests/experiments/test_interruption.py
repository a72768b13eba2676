"""Signals end a training after its step, and a second one ends the process."""

import signal
import subprocess
import sys
import threading

import pytest

from experiments.interruption import Interruption


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_is_a_request(number, capsys):
    before = signal.getsignal(number)
    with Interruption() as stop:
        assert not stop.requested
        signal.raise_signal(number)
        assert stop.requested
    assert capsys.readouterr().err.count("a second signal ends the process at once") == 1
    assert signal.getsignal(number) == before


def test_second_signal_ends_a_process_in_a_long_call():
    """This function releases the lock of Python and runs none of its handlers, as a compiler."""
    code = (
        "import hashlib\nfrom experiments.interruption import Interruption\n"
        "with Interruption():\n"
        "  print('ready', flush=True)\n"
        "  hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    timer = threading.Timer(60, process.kill)
    timer.start()
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stderr.readline() == "\n"
    assert "second signal" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate()
    timer.cancel()
    assert process.returncode == 128 + signal.SIGINT


def test_other_threads_take_no_signals():
    handlers = []

    def enter():
        with Interruption():
            handlers.append(signal.getsignal(signal.SIGTERM))

    before, thread = signal.getsignal(signal.SIGTERM), threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert handlers == [before]

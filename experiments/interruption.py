"""SIGTERM and Ctrl-C: a training saves its state after the running step, and ends."""

import os
import signal
import sys
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Any, Self

SIGNALS = signal.SIGTERM, signal.SIGINT


class Interruption:
    """Signals that ask this process to stop, within a `with` block.

    The first signal sets `requested`. The second ends the process at once, also while XLA compiles:
    a Python handler waits for the end of such a call, so a thread reads the numbers of signals that
    the handler in C writes into a pipe.

    Attributes:
        requested: whether a signal has come to this process.
    """

    def __init__(self) -> None:
        """Take no signals yet."""
        self.requested = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Take the signals; in a thread other than the main one, none can be taken."""
        if current_thread() is not main_thread():
            return self
        reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._thread = Thread(target=self._watch, args=(reading,), name="signals", daemon=True)
        self._thread.start()
        self._wakeup = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        """Give the signals back."""
        if not self._handlers:
            return
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._writing)  # ends the thread
        self._thread.join()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.requested = True

    def _watch(self, reading: int) -> None:
        """Read the numbers of signals as they come, in a thread."""
        is_first = True
        while numbers := os.read(reading, 1):
            if numbers[0] not in SIGNALS:
                continue
            if not is_first:
                os._exit(128 + numbers[0])
            is_first, self.requested = False, True
            print(
                "\nthe state is saved when the running step or measurement has ended; a second "
                "signal ends the process at once",
                file=sys.stderr,
                flush=True,
            )
        os.close(reading)

"""SIGTERM and Ctrl-C: a training saves its state after the running step, and ends."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, current_thread, main_thread

SIGNALS = signal.SIGTERM, signal.SIGINT
SENTENCE = (
    "\nthe state is saved when the running step or measurement has ended; a second signal ends the "
    "process at once\n"
)


@contextmanager
def interruption() -> Iterator[Event]:
    """Take the signals that ask this process to stop; the first one sets the event.

    The second one ends the process. In a thread other than the main one, no signal can be taken.
    """
    requested = Event()

    def request(*_: object) -> None:
        requested.set()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.write(2, SENTENCE.encode())

    is_main = current_thread() is main_thread()
    handlers = {number: signal.signal(number, request) for number in SIGNALS if is_main}
    try:
        yield requested
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)

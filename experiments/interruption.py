"""SIGTERM and Ctrl-C: a training saves its state after the running step, and ends."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread, current_thread, main_thread

SIGNALS = signal.SIGTERM, signal.SIGINT
SENTENCE = (
    "\nthe state is saved when the running step or measurement has ended; a second signal ends the "
    "process at once"
)


@contextmanager
def interruption() -> Iterator[Event]:
    """Take the signals that ask this process to stop; the first one sets the event.

    The second one ends the process at once, also while XLA compiles: a Python handler waits for the
    end of such a call, so a thread reads the numbers of signals that the handler in C writes into a
    pipe. In a thread other than the main one, no signal can be taken.
    """
    requested = Event()
    if current_thread() is not main_thread():
        yield requested
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    thread = Thread(target=_watch, args=(reading, requested), name="signals", daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, lambda *_: requested.set()) for number in SIGNALS}
    try:
        yield requested
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(writing)  # ends the thread
        thread.join()
        os.close(reading)


def _watch(pipe: int, requested: Event) -> None:
    """Read the numbers of signals as they come, and end the process at the second one."""
    is_first = True
    while number := os.read(pipe, 1):
        if number[0] in SIGNALS and not is_first:
            os._exit(128 + number[0])
        if number[0] in SIGNALS:
            is_first = False
            requested.set()
            print(SENTENCE, file=sys.stderr, flush=True)

"""Times of several programs in turn, so that other load slows down all of them."""

import time
from collections.abc import Callable, Mapping

# Threads of a library keep spinning for some milliseconds after its last work.
REST = 0.01


def seconds_of(run: Callable[[], object]) -> float:
    """Return the seconds of one call, after a pause."""
    time.sleep(REST)
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def seconds_of_second(run: Callable[[], object]) -> float:
    """Return the seconds of the second of two calls.

    The first one also waits for the pages of memory that another program has given back.
    """
    run()
    return seconds_of(run)


def round_robin(
    runs: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    rounds: int,
    first: Mapping[str, float] | None = None,
) -> dict[str, tuple[float, ...]]:
    """Return the seconds by `seconds_of_second` in each round, by name.

    Args:
        runs: functions by name.
        seconds: a function takes part until its times add up to this.
        rounds: most times of a function.
        first: the times of the first round, where they are known; they are measured by default.
    """
    if first is None:
        first = {name: seconds_of_second(run) for name, run in runs.items()}
    times = {name: [first[name]] for name in runs}
    for _ in range(rounds - 1):
        for name, run in runs.items():
            if sum(times[name]) < seconds:
                times[name].append(seconds_of_second(run))
    return {name: tuple(taken) for name, taken in times.items()}

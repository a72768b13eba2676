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


def round_robin(
    runs: Mapping[str, Callable[[], object]],
    warm_ups: Mapping[str, float],
    *,
    seconds: float,
    rounds: int,
) -> dict[str, tuple[float, ...]]:
    """Return the seconds of each timed call, by name.

    Before each timed call comes one of the same function that is not timed: after a function that
    needs much memory, the next one waits until the system has given it pages again.

    Args:
        runs: functions by name; each has been called once.
        warm_ups: seconds of that call. If it took longer than `seconds`, it is the measurement: a
            call that long gains little from an earlier one.
        seconds: a function is called until its timed calls have taken this long.
        rounds: most timed calls of a function.
    """
    times = {name: [warm_ups[name]] if warm_ups[name] > seconds else [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            if sum(times[name]) < seconds:
                run()
                times[name].append(seconds_of(run))
    return {name: tuple(taken) for name, taken in times.items()}

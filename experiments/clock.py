"""Times of several programs, taken in turn so that a busy moment meets all of them."""

import time
from collections.abc import Callable, Mapping

# The threads of one library look out for more work for some milliseconds after its last.
REST = 0.01


def seconds_of(run: Callable[[], object]) -> float:
    """How long one call takes, after a rest."""
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
    """Seconds of every call, by name.

    Args:
        runs: what to call; all have been called once.
        warm_ups: the seconds of that call. One that took longer than `seconds` is the measurement,
            for what runs that long gains little from having run before.
        seconds: who has run this long takes part in no more rounds.
        rounds: the most calls of one.
    """
    times = {name: [warm_ups[name]] if warm_ups[name] > seconds else [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            if sum(times[name]) < seconds:
                times[name].append(seconds_of(run))
    return {name: tuple(taken) for name, taken in times.items()}

"""Functions take turns until their times add up, and the second of two calls is timed."""

import pytest

from experiments.benchmarks import clock


@pytest.fixture
def scripted(monkeypatch):
    """A class of functions with given times, and the order in which they are timed."""
    order = []

    class Run:
        def __init__(self, name, seconds):
            self.name, self.seconds = name, seconds

    def seconds_of_second(run):
        order.append(run.name)
        return run.seconds

    monkeypatch.setattr(clock, "seconds_of_second", seconds_of_second)
    return Run, order


def test_runs_take_turns_until_their_time_is_up(scripted):
    Run, order = scripted
    runs = {"quick": Run("quick", 1.0), "slow": Run("slow", 3.0)}
    times = clock.round_robin(runs, seconds=5.0, rounds=4, first={"quick": 2.0, "slow": 4.0})
    assert times == {"quick": (2.0, 1.0, 1.0, 1.0), "slow": (4.0, 3.0)}
    assert order == ["quick", "slow", "quick", "quick"]
    order.clear()
    assert clock.round_robin(runs, seconds=5.0, rounds=1) == {"quick": (1.0,), "slow": (3.0,)}
    assert order == ["quick", "slow"]


def test_a_first_time_longer_than_the_limit_is_the_only_one(scripted):
    Run, order = scripted
    runs = {"quick": Run("quick", 1.0), "endless": Run("endless", 9.0)}
    times = clock.round_robin(runs, seconds=5.0, rounds=2, first={"quick": 1.0, "endless": 11.0})
    assert times == {"quick": (1.0, 1.0), "endless": (11.0,)}
    assert order == ["quick"]


def test_a_call_is_timed_and_the_one_before_it_is_not(monkeypatch):
    called = []
    assert 0 <= clock.seconds_of(lambda: called.append(1)) < 60
    assert called == [1]
    monkeypatch.setattr(clock, "seconds_of", lambda run: run() or len(called))
    assert clock.seconds_of_second(lambda: called.append(1)) == 3

"""Programs take turns, and none takes more than its time."""

import pytest

from experiments import clock


@pytest.fixture
def scripted(monkeypatch):
    """Runs that take the seconds they say, and the order in which they were called."""
    order = []
    monkeypatch.setattr(clock, "seconds_of", lambda run: order.append(run.name) or run.seconds)
    return order


class Run:
    def __init__(self, name, seconds):
        self.name, self.seconds = name, seconds


def test_runs_take_turns_until_their_time_is_up(scripted):
    runs = {"quick": Run("quick", 1.0), "slow": Run("slow", 3.0)}
    times = clock.round_robin(runs, {"quick": 2.0, "slow": 4.0}, seconds=5.0, rounds=3)
    assert times == {"quick": (1.0, 1.0, 1.0), "slow": (3.0, 3.0)}
    assert scripted == ["quick", "slow", "quick", "slow", "quick"]


def test_a_first_call_longer_than_the_time_is_the_measurement(scripted):
    runs = {"quick": Run("quick", 1.0), "endless": Run("endless", 9.0)}
    times = clock.round_robin(runs, {"quick": 1.0, "endless": 11.0}, seconds=5.0, rounds=2)
    assert times == {"quick": (1.0, 1.0), "endless": (11.0,)}
    assert scripted == ["quick", "quick"]


def test_a_call_is_timed():
    called = []
    assert 0 <= clock.seconds_of(lambda: called.append(1)) < 60
    assert called == [1]

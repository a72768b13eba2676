"""Programs take turns, none takes more than its time, and each is warm when it is timed."""

import pytest

from experiments import clock


@pytest.fixture
def scripted(monkeypatch):
    """Runs that take the seconds they say, and the order in which they were timed and called."""
    order = []

    class Run:
        def __init__(self, name, seconds):
            self.name, self.seconds = name, seconds

        def __call__(self):
            order.append(f"({self.name})")

    monkeypatch.setattr(clock, "seconds_of", lambda run: order.append(run.name) or run.seconds)
    return Run, order


def test_runs_take_turns_until_their_time_is_up(scripted):
    run, order = scripted
    runs = {"quick": run("quick", 1.0), "slow": run("slow", 3.0)}
    times = clock.round_robin(runs, {"quick": 2.0, "slow": 4.0}, seconds=5.0, rounds=3)
    assert times == {"quick": (1.0, 1.0, 1.0), "slow": (3.0, 3.0)}
    assert " ".join(order) == "(quick) quick (slow) slow (quick) quick (slow) slow (quick) quick"


def test_a_first_call_longer_than_the_time_is_the_measurement(scripted):
    run, order = scripted
    runs = {"quick": run("quick", 1.0), "endless": run("endless", 9.0)}
    times = clock.round_robin(runs, {"quick": 1.0, "endless": 11.0}, seconds=5.0, rounds=2)
    assert times == {"quick": (1.0, 1.0), "endless": (11.0,)}
    assert " ".join(order) == "(quick) quick (quick) quick"


def test_a_call_is_timed():
    called = []
    assert 0 <= clock.seconds_of(lambda: called.append(1)) < 60
    assert called == [1]

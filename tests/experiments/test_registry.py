"""Registries: names, late imports, and errors for unknown and repeated names."""

import sys

import pytest

from experiments.registry import LOSSES, METRICS, TASKS, Registry


def test_an_entry_is_imported_when_it_is_looked_up(monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    registry = Registry("field", {"codec": "codecs:lookup", "zen": "this:d"})
    assert [*registry] == ["codec", "zen"] and len(registry) == 2 and "zen" in registry
    assert registry["codec"]("utf-8").name == "utf-8"
    assert "this" not in sys.modules


def test_a_decorator_adds_an_entry():
    registry = Registry("field", {"old": "codecs:lookup"})

    @registry("new")
    class New:
        pass

    assert registry["new"] is New
    with pytest.raises(ValueError, match="field='new' is registered already"):
        registry("new")


def test_unknown_name_raises_with_the_nearest():
    with pytest.raises(ValueError, match=r"task must be one of .* did you mean 'translation'"):
        TASKS["translatio"]


@pytest.mark.parametrize(
    "registry",
    [TASKS, SOURCES, LOSSES, METRICS],
    ids=["tasks", "datasets", "losses", "metrics"],
)
def test_every_built_in_entry_exists(registry):
    for name in registry:
        assert registry[name] is not None

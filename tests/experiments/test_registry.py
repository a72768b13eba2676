"""Registries: names, and errors for unknown and repeated names."""

import pytest

from experiments.registry import DATASETS, Registry


def test_a_decorator_adds_an_entry():
    registry = Registry("field")

    @registry("new")
    class New:
        pass

    assert registry["new"] is New and [*registry] == ["new"]
    with pytest.raises(ValueError, match="field='new' is registered already"):
        registry("new")


def test_a_vocabulary_is_shared_where_the_source_shares_it():
    for name, dataset in DATASETS.items():
        text, is_shared = dataset.source.text, dataset.config.is_shared
        assert is_shared is None or is_shared == getattr(text, "shared", False), name

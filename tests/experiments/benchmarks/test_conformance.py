"""The conformance page and its adapters of other libraries."""

import re

import jax.numpy as jnp
import pytest

from attention.testing import ROWS, check_attention
from experiments.benchmarks import ours
from experiments.benchmarks.conformance import main
from experiments.benchmarks.contender import LIBRARY, Contender
from experiments.benchmarks.peers import flax_nnx, jax_nn, tokamax_api


@pytest.mark.parametrize("peer, row", [(jax_nn, "logsumexp"), (flax_nnx, "dropout: reproducible")])
def test_results_and_options_of_other_libraries_are_adapted(peer, row):
    (one,) = peer.contenders()
    assert check_attention(one.function, one.supports, rows=[row])[row].verdict == "pass"


def test_tiled_attention_passes_at_long_lengths():
    """Tests of the other rows and implementations are in tests/attention."""
    tiled = next(one for one in ours.contenders() if one.name == "attend:tiled")
    rows = [row for row in ROWS if "unaligned" in row]
    report = check_attention(tiled.function, tiled.supports, rows=rows)
    assert {row.verdict for row in report.rows} == {"pass"}, report
    with pytest.raises(ValueError, match="batch axes of query and key differ"):
        tiled.function(jnp.ones((1, 2, 1, 3)), *[jnp.ones((2, 2, 1, 3))] * 2)


def test_command_writes_a_page_with_verdicts_examples_and_absent_functions(tmp_path, monkeypatch):
    def ignores_key(query, key, value, mask=None):
        if mask is not None:
            raise NotImplementedError("no masks")
        return query

    def absent(*inputs):
        raise NotImplementedError("it needs a GPU")

    functions = {"wrong": ignores_key, "gpu": absent}
    every = [Contender(name, LIBRARY, None, each, ["mask"]) for name, each in functions.items()]
    monkeypatch.setattr(ours, "contenders", lambda: every)
    for peer in (jax_nn, flax_nnx, tokamax_api):
        monkeypatch.setattr(peer, "contenders", lambda: [])
    assert main(["conformance", str(tmp_path / "page.md")]) == 1
    text = (tmp_path / "page.md").read_text()
    assert "1. `wrong` (this library)" in text
    assert "- not run: `gpu`: it needs a GPU" in text
    assert "| values | **FAIL** |" in text and "| mask | ? |" in text
    assert re.search(r"- \*\*values\*\*: output at .* \[B=1 T=1 S=1 N=1 K=1 H=1 Hv=1", text)

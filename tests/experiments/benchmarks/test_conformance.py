"""The conformance page and its adapters of other libraries."""

import re
from pathlib import Path

import jax.numpy as jnp
import pytest

from attention.primitives.attend import IMPLEMENTATIONS
from attention.testing import ROWS, check_attention
from experiments.benchmarks import ours
from experiments.benchmarks.conformance import main
from experiments.benchmarks.contender import LIBRARY, Candidate
from experiments.benchmarks.peers import flax_nnx, jax_nn, tokamax_api

PAGE = Path(__file__).resolve().parents[3] / "docs" / "CONFORMANCE.md"
BASIC = ("values", "mask", "fully masked rows")


INSTALLED = {one.name: one for peer in (jax_nn, flax_nnx) for one in peer.candidates()}


@pytest.mark.parametrize("peer", INSTALLED.values(), ids=INSTALLED)
def test_adapters_of_other_libraries(peer):
    report = check_attention(peer.function, peer.supports - {"value_width"}, rows=BASIC)
    assert [row.verdict for row in report.rows] == ["pass", "pass", "fail"]


def test_every_implementation_is_a_candidate_or_has_a_reason():
    candidates, absent = ours.candidates()
    names = [*(one.name for one in candidates), *(name for name, _ in absent)]
    assert sorted(names) == sorted(f"attend, {one.name}" for one in IMPLEMENTATIONS)
    reference = next(one for one in candidates if one.name == "attend, reference")
    assert reference.function(*[jnp.ones((1, 2, 1, 3))] * 3).shape == (1, 2, 1, 3)
    with pytest.raises(ValueError, match="batch axes of query and key differ"):
        reference.function(jnp.ones((1, 2, 1, 3)), *[jnp.ones((2, 2, 1, 3))] * 2)


# Tests of tiles in tests/attention compute more cases of these rows.
IN_OTHER_TESTS = {"closures in masks", "closures in scores", "dropout: reproducible"}
IN_OTHER_TESTS |= {"dropout: rate and scale", "dropout: same pairs as attend"}


def test_tiled_attention_passes_every_row():
    """Tests of the other implementations are in tests/attention."""
    candidate = next(one for one in ours.candidates()[0] if one.name == "attend, tiled")
    rows = tuple(row for row in ROWS if row not in IN_OTHER_TESTS)
    report = check_attention(candidate.function, candidate.supports, rows=rows)
    report.raise_if_failed()
    assert [row.verdict for row in report.rows] == ["pass"] * (len(ROWS) - len(IN_OTHER_TESTS))


def test_command_writes_a_page_with_verdicts_examples_and_absent_functions(tmp_path, monkeypatch):
    def ignores_key(query, key, value, mask=None):
        if mask is not None:
            raise NotImplementedError("no masks")
        return query

    wrong = Candidate("wrong", LIBRARY, ignores_key, ("jit", "mask"))
    absent = [("attend, gpu", "it needs a GPU")]
    monkeypatch.setattr(ours, "candidates", lambda: ([wrong], absent))
    for peer in (jax_nn, flax_nnx, tokamax_api):
        monkeypatch.setattr(peer, "candidates", lambda: [])
    assert main(["conformance", str(tmp_path / "page.md")]) == 1
    text = (tmp_path / "page.md").read_text()
    assert "1. `wrong` (this library)" in text
    assert "- not run: `attend, gpu`: it needs a GPU" in text
    assert "| values | **FAIL** |" in text and "| mask | ? |" in text
    assert re.search(r"- \*\*values\*\*: output at .* \[B=1 T=1 S=1 N=1 K=1 H=1 Hv=1", text)

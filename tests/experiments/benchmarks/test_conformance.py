"""The conformance page and its adapters of other libraries."""

import re
from pathlib import Path

import jax.numpy as jnp
import pytest

from attention.primitives.attend import IMPLEMENTATIONS
from attention.testing import ROWS, check_attention
from experiments.benchmarks import ours, peers
from experiments.benchmarks.conformance import candidates, main, page
from experiments.benchmarks.contender import LIBRARY, Candidate
from experiments.benchmarks.peers import flax_nnx, jax_nn

PAGE = Path(__file__).resolve().parents[3] / "docs" / "CONFORMANCE.md"
BASIC = ("values", "mask", "fully masked rows")


INSTALLED = {one.name: one for peer in (jax_nn, flax_nnx) for one in peer.candidates()}


@pytest.mark.parametrize("peer", INSTALLED.values(), ids=INSTALLED)
def test_adapters_of_other_libraries(peer):
    report = check_attention(peer.function, peer.supports - {"value_width"}, rows=BASIC)
    assert [row.verdict for row in report.rows] == ["pass", "pass", "fail"]


def test_missing_and_broken_peers_are_listed_with_the_reason(monkeypatch, capsys):
    def missing():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    def broken():
        raise ImportError("libtorch.so: undefined symbol")

    monkeypatch.setattr(peers, "PEERS", {"torch": missing, "broken": broken})
    assert list(peers.of_peers(lambda peer: peer())) == [
        ("torch", "not installed"),
        ("broken", "ImportError: libtorch.so: undefined symbol"),
    ]
    assert "in broken" in capsys.readouterr().err


def test_every_implementation_is_a_candidate_or_has_a_reason():
    found = list(ours.candidates())
    names = [one.name if isinstance(one, Candidate) else one[0] for one in found]
    assert names == [f"attend, {one.name}" for one in IMPLEMENTATIONS]
    reference = found[names.index("attend, reference")]
    assert reference.function(*[jnp.ones((1, 2, 1, 3))] * 3).shape == (1, 2, 1, 3)


# Tests of tiles in tests/attention compute more cases of these rows.
IN_OTHER_TESTS = {"closures in masks", "closures in scores", "dropout: reproducible"}
IN_OTHER_TESTS |= {"dropout: rate and scale", "dropout: same pairs as attend"}


def test_tiled_attention_passes_every_row():
    """Tests of the other implementations are in tests/attention."""
    found = {one.name: one for one in ours.candidates() if isinstance(one, Candidate)}
    candidate = found["attend, tiled"]
    rows = tuple(row for row in ROWS if row not in IN_OTHER_TESTS)
    report = check_attention(candidate.function, candidate.supports, rows=rows)
    report.raise_if_failed()
    assert [row.verdict for row in report.rows] == ["pass"] * (len(ROWS) - len(IN_OTHER_TESTS))


def test_error_of_an_implementation_is_not_a_refusal():
    reference = next(one for one in ours.candidates() if isinstance(one, Candidate))
    with pytest.raises(ValueError, match="batch axes of query and key differ"):
        reference.function(jnp.ones((1, 2, 1, 3)), *[jnp.ones((2, 2, 1, 3))] * 2)


def test_page_contains_verdicts_examples_and_absent_functions():
    def ignores_key(query, key, value, mask=None):
        if mask is not None:
            raise NotImplementedError("no masks")
        return query

    right = next(one for one in ours.candidates() if isinstance(one, Candidate))
    wrong = Candidate("wrong", "0.1", ignores_key, ("jit", "mask"))
    checked = [(one, check_attention(one.function, one.supports)) for one in (wrong,)]
    text = page([*checked, (right, checked[0][1])], [("torch", "not installed")], "a machine")
    assert "1. `wrong` (0.1)" in text
    assert "- not run: `torch`: not installed" in text
    assert "| values | **FAIL** | **FAIL** |" in text
    assert "| mask | ? | ? |" in text
    assert re.search(r"- \*\*values\*\*: output at .* \[B=1 T=1 S=1 N=1 K=1 H=1 Hv=1", text)


def test_command_writes_the_page(tmp_path, monkeypatch):
    def broken(query, key, value):
        return query

    found = [Candidate("ours", LIBRARY, broken, ()), ("absent", "not installed")]
    monkeypatch.setattr("experiments.benchmarks.conformance.candidates", lambda: iter(found))
    assert main(["conformance", str(tmp_path / "page.md")]) == 1
    assert "| values | **FAIL** |" in (tmp_path / "page.md").read_text()


def test_number_of_candidates():
    names = [one.name if isinstance(one, Candidate) else one[0] for one in candidates()]
    assert len(names) == len(IMPLEMENTATIONS) + 5


def test_committed_page_has_every_row():
    rows = re.findall(r"^\| (?!row|---)([^|]+) \| ", PAGE.read_text(), re.MULTILINE)
    assert tuple(rows) == ROWS

"""`--mode=prepare` stores the data that a training reads."""

from experiments import prepare
from tests.command_line.command import TINY


def test_data_is_stored_and_no_run_is_made(run_command, place):
    status, printed, _ = run_command("--mode=prepare", *TINY, workdir="none")
    assert status == 0 and "\nvalidation: 20 examples\n" in printed
    assert not (place / "none").exists()
    assert {"text", "tokens", "ids"} <= {path.name for path in (place / "cache").iterdir()}


def test_beam_needs_an_extra(run_command, monkeypatch):
    monkeypatch.setattr(prepare, "find_spec", lambda name: None)
    status, _, error = run_command("--mode=prepare", "--beam=--runner=DirectRunner", *TINY)
    assert status == 2 and 'pip install ".[prepare]"' in error

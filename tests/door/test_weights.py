"""`run.py --mode=generate --weights=FOLDER`: text from a released checkpoint."""

import contextlib
import io

import pytest

import run
from tests.door.command import at_the_door

CHECKPOINTS = "tests/fixtures/checkpoints"


@pytest.fixture
def generate(place, monkeypatch):
    """Run the command for a checkpoint; return (exit status, standard output, standard error)."""

    def call(folder, *flags, given="the cat\nhello\n"):
        arguments = [f"--cache={place / 'cache'}", f"--weights={CHECKPOINTS}/{folder}", *flags]
        text = io.TextIOWrapper(io.BytesIO(given.encode()))
        output, error = io.StringIO(), io.StringIO()
        with at_the_door(), pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdin", text)
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
                status = run.main(["run.py", "--mode=generate", *arguments])
        return status, output.getvalue(), error.getvalue()

    return call


def test_greedy_decoding_and_a_beam_of_several_continue_each_line(generate):
    few = "--config.decoding.max_tokens=4"
    for flags in (["--config.decoding.strategy=greedy"], ["--config.decoding.num_beams=2"]):
        status, output, error = generate("gpt2", few, *flags)
        assert (status, error) == (0, "")
        first, second = output.splitlines()
        assert first.startswith("the cat") and len(first) > len("the cat")
        assert second.startswith("hello") and len(second) > len("hello")


@pytest.mark.parametrize(
    "folder, flags, message",
    [
        ("bert", [], "contains a MaskedLanguageModel, which generates no text"),
        ("nothing", [], "contains no config.json"),
        ("gpt2", ["--mode=train"], "--weights is for --mode=generate alone"),
        ("gpt2", ["--config.decoding.num_beams=0"], "decoding.num_beams must be at least 1, got 0"),
    ],
)
def test_wrong_use_is_one_sentence(generate, folder, flags, message):
    status, output, error = generate(folder, *flags)
    assert (status, output) == (2, "")
    assert message in error and error.count("\n") == 1

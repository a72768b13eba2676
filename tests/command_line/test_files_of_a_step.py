"""How many of our files a reader opens to follow one optimizer step of the main job."""

import inspect
import sys

import jax
import pytest
from experiments.training import loop, session

from tests.command_line.command import REPOSITORY, TINY

MOST = 12


@pytest.mark.usefixtures("initial_states")
def test_a_step_enters_at_most_twelve_files_outside_the_library(run_command, monkeypatch):
    """Files on the stack, and those that make the batch and trace the step."""
    entered = {inspect.getsourcefile(loop.fit)}

    def note(frame, event, _):
        if event == "call":
            entered.add(frame.f_code.co_filename)

    def fit(state, read_batch, train_step, **_):
        frame = sys._getframe(1)
        while frame is not None:
            note(frame, "call", None)
            frame = frame.f_back
        sys.setprofile(note)
        try:
            jax.eval_shape(lambda state: train_step(state, read_batch(0)[0]), state)
        finally:
            sys.setprofile(None)
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "fit", fit)
    assert run_command(*TINY, workdir="followed")[0] == 130
    ours = [REPOSITORY / "run.py", *(REPOSITORY / "experiments").rglob("*.py")]
    files = sorted(str(path.relative_to(REPOSITORY)) for path in ours if str(path) in entered)
    assert "experiments/tasks/translation.py" in files and "run.py" in files
    assert len(files) <= MOST, files

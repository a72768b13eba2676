"""The loop with a step that is known beforehand: what is written down of it."""

import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments.training.loop import fit
from experiments.training.step import TrainState

EVERY = ConfigDict(
    {"steps": 2, "log_every": 2, "evaluate_every": 2, "sample_every": 2, "checkpoint_every": 2}
)
MEASURED = [
    {"loss": 1.0, "nll": 2.0, "accuracy": 0.0, "tokens": 30.0, "gradient_norm": 1.0},
    {"loss": 5.0, "nll": 6.0, "accuracy": 1.0, "tokens": 10.0, "gradient_norm": 3.0},
]


class Batches:
    def __init__(self):
        self.rest = iter(MEASURED)

    def __next__(self):
        return {name: np.float32(value) for name, value in next(self.rest).items()}

    def get_state(self):
        return {}


class Notes:
    """Takes what the loop gives to metrics and to checkpoints."""

    def __init__(self):
        self.rows, self.saved = {}, []

    def write(self, step, split, values):
        self.rows[step, split] = values

    def save(self, state, progress):
        self.saved.append(state)


@pytest.fixture
def notes():
    notes = Notes()
    fit(
        TrainState(step=0, parameters=None, optimizer=None, key=None),
        Batches(),
        lambda state, batch: (state._replace(step=state.step + 1), batch),
        config=EVERY,
        metrics=notes,
        checkpoints=notes,
        evaluate=lambda state: {"nll": 0.5},
        sample=lambda state: "",
    )
    return notes


def test_a_row_holds_means_over_tokens_and_the_norm_over_steps(notes):
    row = notes.rows[2, "train"]
    speeds = {name: row.pop(name) for name in ("tokens_per_second", "steps_per_second")}
    # (30 * 1 + 10 * 5) / 40, and so on
    assert row == {"loss": 2.0, "nll": 3.0, "accuracy": 0.25, "gradient_norm": 2.0}
    assert speeds["tokens_per_second"] == pytest.approx(20 * speeds["steps_per_second"])


def test_the_last_state_is_measured_and_saved(notes):
    assert notes.rows[2, "validation"] == {"nll": 0.5}
    assert [state.step for state in notes.saved] == [2]

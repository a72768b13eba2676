"""The loop with a step that is known beforehand: what is written down of it."""

import faulthandler
import json
from contextlib import contextmanager, nullcontext
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from experiments.training.loop import BEGINNING, fit
from experiments.training.measurements import NonFiniteError, StepMeasurements
from experiments.training.plateau import best_step, monitored_loss
from experiments.training.watchdog import step_timeout

from experiments.config.train import TrainPart
from experiments.errors import UsageError
from experiments.interruption import Stopped
from experiments.learner import TrainState

EVERY = dict.fromkeys(("steps", "log_every", "evaluate_every", "sample_every"), 2)
EVERY |= {"checkpoint_every": 2, "warmup_steps": 0, "schedule": "constant"}
MEASURED = [
    {"loss": 1.0, "nll": 2.0, "accuracy": 0.0, "tokens": 30.0, "gradient_norm": 1.0},
    {"loss": 5.0, "nll": 6.0, "accuracy": 1.0, "tokens": 10.0, "gradient_norm": 3.0},
]
for each, rate in zip(MEASURED, (0.25, 0.5), strict=True):
    each["learning_rate"] = rate


NUM_ROWS = 3


def read_batch(step, nonfinite=(), skips=False):
    """Return the measurements of a step in place of its batch."""
    measured = MEASURED[step % len(MEASURED)]
    measured = {name: np.float32(value) for name, value in measured.items()}
    if step + 1 in nonfinite:
        measured["loss"] = np.float32(np.nan)
    if skips:
        measured["skipped"] = np.float32(step + 1 in nonfinite)
    return measured, NUM_ROWS


class Notes:
    """Takes what the loop gives to metrics and to checkpoints."""

    def __init__(self):
        self.rows, self.timing, self.saved, self.progress = {}, [], [], None

    def write(self, step, split, values):
        self.rows[step, split] = values

    def write_timing(self, step, values):
        self.timing.append((step, values))

    def save(self, state, progress):
        self.saved.append(state)
        self.progress = progress


BEGUN = TrainState(
    step=jnp.int32(0),
    parameters=None,
    average=None,
    optimizer=None,
    lr_scale=np.float32(1),
    rng=None,
)


def learn(losses, begun=BEGUN, progress=BEGINNING, notes=None, nonfinite=(), stop=None, **changes):
    """Takes steps whose evaluations find these losses, one after the other."""
    notes, losses = notes or Notes(), iter(losses)
    config = TrainPart(**(EVERY | changes))
    with step_timeout(config.step_timeout):
        fit(
            begun,
            partial(read_batch, nonfinite=nonfinite, skips="skip_nonfinite" in changes),
            lambda state, batch: (state._replace(step=state.step + 1), batch),
            config=config,
            metrics=notes,
            save=notes.save,
            evaluate=lambda state: {"loss": 1.0, changes.get("monitor", "loss"): next(losses)},
            sample=lambda state: lambda: "",
            flops=lambda batch, num_rows: 7 * float(batch["tokens"]) * num_rows / NUM_ROWS,
            progress=progress,
            stop=stop,
        )
    return notes


@pytest.fixture
def notes():
    return learn([0.5])


def test_a_row_holds_means_over_tokens_and_the_norm_over_steps(notes):
    # (30 * 1 + 10 * 5) / 40, and so on; the learning rate is the last one
    assert notes.rows[2, "train"] == {
        "loss": 2.0,
        "nll": 3.0,
        "accuracy": 0.25,
        "gradient_norm": 2.0,
        "learning_rate": 0.5,
    }


def test_speed_and_memory_are_rows_of_their_own(notes):
    ((step, row),) = notes.timing
    assert step == 2
    assert row["tokens_per_second"] == pytest.approx(20 * row["steps_per_second"])
    assert row["flops_per_second"] == pytest.approx(7 * row["tokens_per_second"])
    assert row["peak_memory_bytes"] > 2**20
    assert "model_flop_utilization" not in row  # the peak of a CPU is unknown


def test_the_last_state_is_measured_and_saved(notes):
    assert notes.rows[2, "validation"] == {"loss": 0.5}
    assert [state.step for state in notes.saved] == [2]


STALLING = [3.0, 2.0, 2.5, 2.0, 1.0, 1.5, 1.2, 1.1, 1.3, 0.9]  # of steps 2, 4, ...


def test_patience_ends_a_training_and_the_best_is_known():
    notes = learn(STALLING, steps=20, patience=3)
    assert [state.step for state in notes.saved] == [2, 4, 6, 8, 10, 12, 14, 16]
    assert best_step(notes.progress["losses"]) == 10


def test_patience_follows_the_monitored_value():
    bleu = [0.0, 10.0, 30.0, 20.0, 30.0, 40.0]
    notes = learn(
        bleu,
        steps=20,
        patience=2,
        monitor="bleu",
        evaluators=("bleu",),
        checkpoint_every=3,  # each evaluation has a checkpoint nevertheless
    )
    assert notes.rows[4, "validation"] == {"loss": 1.0, "bleu": 30.0}
    assert best_step(notes.progress["losses"]) == 4
    assert [state.step for state in notes.saved] == [2, 4, 6, 8]


def test_unknown_monitored_value_ends_the_run_before_its_first_step():
    config = TrainPart(**EVERY, evaluators=("bleu",), monitor="blue", monitor_mode="max")
    notes = Notes()
    with pytest.raises(UsageError, match=r"train\.monitor must be one of loss, bleu, got 'blue'"):
        fit(
            BEGUN,
            None,
            None,
            config=config,
            metrics=notes,
            save=notes.save,
            evaluate=lambda state: {"loss": 1.0, "bleu": 2.0},
            sample=None,
            flops=None,
        )


@pytest.mark.parametrize("mode, loss", [("min", 0.25), ("max", -0.25)])
def test_monitor_mode_decides_whether_lower_is_better(mode, loss):
    train = TrainPart(evaluators=("bleu",), monitor="wer", monitor_mode=mode)
    assert monitored_loss({"loss": 1.0, "wer": 0.25}, train) == loss


def test_monitored_value_of_unknown_direction_needs_a_mode():
    with pytest.raises(
        ValueError, match=r"monitor_mode, for monitor='wer', must be one of min, max"
    ):
        TrainPart(evaluators=("bleu",), monitor="wer")


def test_a_training_that_has_ended_stays_so():
    ended = learn(STALLING, steps=20, patience=3)
    again = learn([], ended.saved[-1], ended.progress, steps=20, patience=3)
    assert not again.saved


def test_a_validation_loss_that_is_not_finite_is_never_the_best():
    with pytest.raises(FloatingPointError, match="the validation loss became nan"):
        learn([3.0, float("nan"), 2.0], steps=20, patience=3)


def test_a_plateau_slows_down_each_time_its_patience_ends():
    notes = learn(STALLING, steps=20, schedule="plateau")
    slow = [float(state.lr_scale) for state in notes.saved]
    assert slow == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]


def test_patience_counts_evaluations_before_a_resume():
    before = learn(STALLING[:3], steps=6, schedule="plateau")
    after = learn(STALLING[3:], before.saved[-1], before.progress, steps=20, schedule="plateau")
    whole = learn(STALLING, steps=20, schedule="plateau")
    assert after.saved == whole.saved[3:]
    assert after.progress["losses"] == whole.progress["losses"]


def test_nonfinite_loss_names_its_step_and_is_in_the_last_row():
    notes = Notes()
    norms = r"norm of the gradient 3, 1 in the step before"
    with pytest.raises(
        NonFiniteError, match=rf"^the loss became nan in step 4 \({norms}\)$"
    ) as found:
        learn([0.5], notes=notes, nonfinite=[4], steps=9, log_every=9, checkpoint_every=9)
    assert found.value.step == 4 and not notes.saved
    assert [*notes.rows] == [(2, "validation"), (4, "train")]
    assert np.isnan(notes.rows[4, "train"]["loss"])


def test_skipped_steps_belong_to_no_mean():
    intervals = dict.fromkeys(("steps", "log_every", "checkpoint_every"), 4)
    notes = learn([0.5, 0.5], nonfinite=[2, 3], skip_nonfinite=3, **intervals)
    row = notes.rows[4, "train"]
    assert (row["skipped"], row["loss"]) == (2, (30 * 1 + 10 * 5) / 40)


def test_too_many_skipped_steps_in_a_row_end_the_training():
    message = "the loss became nan in step 7 after 2 skipped steps"
    with pytest.raises(NonFiniteError, match=message):
        learn([0.5] * 5, nonfinite=[2, 3, 5, 6, 7], steps=20, skip_nonfinite=3)


def test_skipped_steps_are_counted_across_a_resumption():
    before = learn([0.5], nonfinite=[2], steps=2, skip_nonfinite=2)
    with pytest.raises(NonFiniteError, match="in step 3 after 1 skipped steps"):
        learn([], before.saved[-1], before.progress, nonfinite=[3], steps=4, skip_nonfinite=2)


class StopAt:
    """Asks to stop after a number of queries."""

    def __init__(self, query):
        self.left = query

    @property
    def requested(self):
        self.left -= 1
        return self.left < 0

    @contextmanager
    def raising(self):
        if self.requested:
            raise Stopped
        yield


@pytest.mark.parametrize("query", range(10))
def test_stopped_training_continues_as_if_unbroken(query):
    """Each query is one step, evaluation or sample; rows have several steps."""
    intervals = {"steps": 7, "log_every": 3, "evaluate_every": 2, "checkpoint_every": 5}
    whole = learn(STALLING, schedule="plateau", **intervals)
    notes = Notes()
    with pytest.raises(Stopped, match=r"^stopped at step \d of 7: the same command continues$"):
        learn(STALLING, stop=StopAt(query), notes=notes, schedule="plateau", **intervals)
    state, progress = (notes.saved or [BEGUN])[-1], notes.progress or BEGINNING
    done = len(progress["losses"])
    progress = json.loads(json.dumps({**progress}))
    learn(STALLING[done:], state, progress, notes, schedule="plateau", **intervals)
    assert notes.rows == whole.rows
    assert notes.saved[-1] == whole.saved[-1]
    assert notes.progress["losses"] == whole.progress["losses"]


def test_skipping_may_be_changed_between_two_rows():
    skips = {"skip_nonfinite": 2}
    for step, before, after in ((1, skips, {}), (2, {}, skips)):
        notes = Notes()
        with pytest.raises(Stopped, match="step 1"):
            learn([], stop=StopAt(1), notes=notes, nonfinite=[step], **before)
        learn([0.5], notes.saved[-1], notes.progress, notes, nonfinite=[step], **after)
        assert notes.rows[2, "train"]["skipped"] == 1


@pytest.fixture
def timers(monkeypatch):
    """One entry while the timeout of a step runs."""
    running = []

    def start(seconds, **_):
        running[:] = [seconds]

    monkeypatch.setattr(faulthandler, "dump_traceback_later", start)
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", running.clear)
    return running


@pytest.mark.parametrize("stop", [None, 2])
def test_step_timeout_begins_anew_for_a_save(timers, stop, monkeypatch):
    class Saves(Notes):
        def save(self, state, progress):
            assert timers == [60]
            super().save(state, progress)

    collect = StepMeasurements.collect
    monkeypatch.setattr(
        StepMeasurements, "collect", lambda self: (collect(self), timers.append("of a step"))
    )
    notes = Saves()
    stopped = nullcontext() if stop is None else pytest.raises(Stopped)
    with stopped:
        learn([0.5] * 5, stop=stop and StopAt(stop), notes=notes, steps=8, step_timeout=60)
    assert len(notes.saved) == (4 if stop is None else 1)
    assert not timers


def test_step_timeout_runs_until_the_step_has_ended(timers, monkeypatch):
    collect, waits = StepMeasurements.collect, []

    def collected(self):
        waits.append((self._running is None, bool(timers)))
        collect(self)

    monkeypatch.setattr(StepMeasurements, "collect", collected)
    learn([0.5] * 3, steps=6, log_every=6, checkpoint_every=6, step_timeout=60)
    assert {is_timed for has_ended, is_timed in waits if not has_ended} == {True}


def test_checkpoint_after_minutes():
    notes = learn([0.5] * 9, steps=6, checkpoint_every=6, checkpoint_minutes=1e-9)
    assert [state.step for state in notes.saved] == [1, 2, 3, 4, 5, 6]

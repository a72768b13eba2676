"""A whole training of a tiny model: files, resumption to the bit, signals, averages, durations."""

import json
import re
import shutil
import signal
import subprocess
import sys
from fractions import Fraction
from functools import partial
from types import ModuleType, SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.checkpoint import digests, read_checkpoint, saved_steps
from experiments.config import Config
from experiments.config.parts import TrainPart, with_steps
from experiments.data.pipeline import Buckets, Epoch, PackedRows, ShuffledBatches, Windows
from experiments.data.tokenizers import EncodedExamples, EncodedPair
from experiments.errors import Stopped, UsageError
from experiments.files import read_json_lines
from experiments.learner import Learner
from experiments.losses import TokenLosses
from experiments.metrics import read_metrics
from experiments.sharding import read_batch
from experiments.train import TRACED, WARM_UP, fit, interruption
from experiments.trained import restore
from experiments.workdir import Workdir

# tensorstore may call back when the read of a damaged array has ended.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

EVERY = {"log_every": 3, "evaluate_every": 4, "sample_every": 6, "checkpoint_every": 5}
TRAIN = {"steps": 12, "warmup_steps": 2, "schedule": "inverse_sqrt", "average": 2, **EVERY}


def squared_error(model, batch, rng):
    """Each row counts as many tokens as its first value."""
    tokens = batch[:, 0].sum()
    loss = jnp.sum(batch[:, :1] * (model(batch) - 1) ** 2)
    return TokenLosses(loss, loss, tokens, tokens), {}


class Batches:
    """Random batches; that of step `nonfinite` contains infinity."""

    def __init__(self, nonfinite=(), at=None, event=None):
        self.nonfinite, self.at, self.event = nonfinite, at, event

    def __getitem__(self, step):
        if step == self.at:
            self.event()
        batch = np.random.default_rng(step).uniform(1, 2, (2, 3)).astype(np.float32)
        if step + 1 in self.nonfinite:
            batch[:, 1] = np.inf
        return batch


class Runs:
    """Trainings in folders, with one compiled program for each config that matters to it."""

    def __init__(self, folder):
        self.folder, self.learners = folder, {}

    def task(self, losses=None, event=None, **changes):
        """Return a task; `losses` replaces the monitored loss of each evaluation by its step."""
        config = Config.read({"task": "translation", "train": {**TRAIN, **changes}})
        key = repr({**vars(config.train), "steps": 0, **dict.fromkeys(EVERY, 0), "patience": 0})
        if key not in self.learners:
            self.learners[key] = Learner(
                lambda rngs: nnx.Linear(3, 1, rngs=rngs), squared_error, config
            )
        learner = self.learners[key]

        def validate(state):
            if event and state.step == event[0]:
                event[1]()
            measured = learner.losses(state.parameters, [Batches()[99]])
            return measured | {"bleu": losses[int(state.step)]} if losses else measured

        def sample(state):
            return f"kernel {state.parameters['kernel'][...].ravel()}"

        return SimpleNamespace(config=config, learner=learner, validate=validate, sample=sample)

    def fit(self, name, batches=None, profile=False, wandb=None, **changes):
        """Train a run, or continue it."""
        workdir, task = Workdir(self.folder / name), self.task(**changes)
        workdir.save_config(task.config)
        read = partial(read_batch, batches or Batches(), task.learner.mesh, 1)
        return fit(task, workdir, read, {}, profile=profile, wandb=wandb)

    def content(self, name, last=12):
        """Return what equal runs have in common."""
        path, like = self.folder / name, self.task().learner.abstract_state
        state, progress = read_checkpoint(path / "checkpoints", last, like)
        files = [(path / file).read_bytes() for file in ("metrics.jsonl", "samples.txt")]
        return digests(state), progress.losses, progress.pending, files


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def unbroken(runs):
    with jax.numpy_dtype_promotion("standard"):
        return runs.fit("unbroken")


def rows(runs, name, split):
    return {row["step"]: row for row in read_metrics(runs.folder / name) if row["split"] == split}


def test_run_writes_rows_samples_and_checkpoints(runs, unbroken):
    assert [*rows(runs, "unbroken", "train")] == [3, 5, 6, 9, 10, 12]
    assert [*rows(runs, "unbroken", "validation")] == [4, 8, 12]
    samples = (runs.folder / "unbroken" / "samples.txt").read_text()
    assert re.findall(r"^step (\d+)$", samples, re.M) == ["6", "12"]
    assert saved_steps(runs.folder / "unbroken" / "checkpoints") == [5, 10, 12]
    assert unbroken.ended and unbroken.seconds > 0
    timing = read_json_lines(runs.folder / "unbroken" / "timing.jsonl", {"step": int})
    assert [row["step"] for row in timing] == [3, 5, 6, 9, 10, 12]
    for row in timing:
        assert row["flops_per_second"] == pytest.approx(6 * 4 * row["tokens_per_second"])
        assert row["peak_memory_bytes"] > 2**20 and row["steps_per_second"] > 0


def killed():
    raise KeyboardInterrupt


def stopped():
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("event", [killed, stopped])
@pytest.mark.parametrize("step", [0, 4, 7, 10])
def test_interrupted_run_equals_the_unbroken_run(runs, unbroken, event, step):
    name = f"{event.__name__}{step}"
    with pytest.raises(KeyboardInterrupt if event is killed else Stopped):
        runs.fit(name, Batches(at=step, event=event))
    if event is stopped:
        assert saved_steps(runs.folder / name / "checkpoints")[-1] == step + 1
    again = runs.fit(name)
    assert runs.content(name) == runs.content("unbroken")
    assert digests(again.state) == digests(unbroken.state)


def test_evaluation_is_finished_before_a_stop(runs, unbroken):
    with pytest.raises(Stopped, match="stopped at step 4 of 12: the same command"):
        runs.fit("stopped_evaluation", event=(4, stopped))
    assert 4 in rows(runs, "stopped_evaluation", "validation")
    runs.fit("stopped_evaluation")
    assert runs.content("stopped_evaluation") == runs.content("unbroken")


def test_checkpoints_by_minutes_change_no_result(runs, unbroken):
    by_minutes = runs.fit("minutes", checkpoint_minutes=1e-9)
    assert saved_steps(runs.folder / "minutes" / "checkpoints") == [5, 10, 11, 12]
    assert digests(by_minutes.state) == digests(unbroken.state)


def test_ended_run_is_not_trained_again(runs, unbroken):
    def times():
        return {path: path.stat().st_mtime_ns for path in runs.folder.glob("unbroken/*.jsonl")}

    before, again = times(), runs.fit("unbroken")
    assert digests(again.state) == digests(unbroken.state) and again.seconds == unbroken.seconds
    assert before == times()


def test_extended_run_equals_one_that_was_longer_from_the_start(runs, unbroken):
    shutil.copytree(runs.folder / "unbroken", runs.folder / "extended")
    extended, longer = runs.fit("extended", steps=15), runs.fit("longer", steps=15)
    assert digests(extended.state) == digests(longer.state)
    (change,) = map(json.loads, (runs.folder / "extended" / "changes.jsonl").open())
    assert (change["step"], change["changed"]) == (12, {"train.steps": [12, 15]})


def test_used_parameters_are_the_mean_of_the_last_regular_checkpoints(runs, unbroken):
    folder, like = runs.folder / "unbroken" / "checkpoints", runs.task().learner.abstract_state
    saved = [read_checkpoint(folder, step, like)[0].parameters for step in (10, 12)]
    mean = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *saved)
    chex.assert_trees_all_close(unbroken.state.parameters, mean, rtol=1e-6)
    restored = restore(Workdir(folder.parent), runs.task())
    assert digests(restored.state) == digests(unbroken.state)


def test_used_parameters_are_the_moving_average(runs):
    used = runs.fit("ema", ema=0.9, average=1).state
    learner = runs.task(ema=0.9, average=1).learner
    state, average = learner.initial_state(), None
    for step in range(12):
        average = average or jax.tree.map(np.array, state.parameters)
        state, _ = learner.train_step(state, Batches()[step])
        keep = min(0.9, (step + 1) / (10 + step))
        average = jax.tree.map(
            lambda old, new, keep=keep: keep * old + (1 - keep) * np.asarray(new),
            average,
            state.parameters,
        )
    chex.assert_trees_all_close(used.parameters, average, rtol=1e-5)


BLEU = {0: 0.0, 2: 0.0, 4: 10.0, 6: 30.0, 8: 20.0, 10: 30.0, 12: 40.0}
PATIENT = {"patience": 2, "evaluate_every": 2, "evaluators": ("bleu",), "monitor": "bleu"}


def test_patience_ends_the_training_and_the_best_state_is_used(runs, capsys):
    trained = runs.fit("patient", losses=BLEU, average=1, **PATIENT)
    assert [*rows(runs, "patient", "validation")] == [2, 4, 6, 8, 10]
    assert trained.ended and trained.state.step == 6
    assert saved_steps(runs.folder / "patient" / "checkpoints") == [6, 8, 10]
    assert "the best validation bleu is of step 6" in capsys.readouterr().out
    assert runs.fit("patient", losses=BLEU, average=1, **PATIENT).state.step == 6


def test_nonfinite_loss_ends_the_run_without_a_checkpoint(runs):
    with pytest.raises(FloatingPointError, match=r"^the loss became (nan|inf) in step 4 \(norm of"):
        runs.fit("nonfinite", Batches(nonfinite=[4]))
    assert not saved_steps(runs.folder / "nonfinite" / "checkpoints")


def test_skipped_steps_change_nothing_and_belong_to_no_mean(runs):
    """Two steps are skipped, also across a resumption; three in a row end the run."""
    batches = Batches(nonfinite=[5, 6], at=5, event=stopped)
    with pytest.raises(Stopped):
        runs.fit("skipping", batches, skip_nonfinite=3)
    runs.fit("skipping", Batches(nonfinite=[5, 6]), skip_nonfinite=3)
    found = rows(runs, "skipping", "train")
    assert [row["skipped"] for row in found.values()] == [0, 1, 1, 0, 0, 0]
    assert [step for step, row in found.items() if not np.isfinite(row["loss"])] == [6]
    with pytest.raises(FloatingPointError, match="in step 7"):
        runs.fit("skipping3", Batches(nonfinite=[5, 6, 7]), skip_nonfinite=3)


def test_deleted_checkpoints_are_not_trained_again(runs, unbroken):
    shutil.copytree(runs.folder / "unbroken", runs.folder / "deleted")
    shutil.rmtree(runs.folder / "deleted" / "checkpoints")
    before = (runs.folder / "deleted" / "metrics.jsonl").read_bytes()
    with pytest.raises(UsageError, match=r"the checkpoints of .* are gone"):
        runs.fit("deleted")
    assert (runs.folder / "deleted" / "metrics.jsonl").read_bytes() == before


def test_damaged_checkpoint_is_set_aside_and_the_run_continues(runs, unbroken, capsys):
    shutil.copytree(runs.folder / "unbroken", runs.folder / "damaged")
    folder = runs.folder / "damaged" / "checkpoints"
    shutil.rmtree(folder / "12" / "state")
    runs.fit("damaged")
    error = capsys.readouterr().err
    assert re.search(r"/12 cannot be read \(.*\): the one of step 10 is used", error)
    assert runs.content("damaged") == runs.content("unbroken")
    assert (folder / "12.damaged").is_dir()


def test_steps_after_the_warm_up_are_traced(runs):
    runs.fit("traced", profile=True, steps=WARM_UP + TRACED)
    assert [*(runs.folder / "traced" / "profile").rglob("*.xplane.pb")]
    with pytest.raises(UsageError, match="--profile needs 15 more steps, and the run has 12"):
        runs.fit("too_short", profile=True)


def test_weights_and_biases_takes_the_events_of_tensorboard(runs, monkeypatch):
    given, wandb = {}, ModuleType("wandb")
    wandb.init = given.update
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    runs.fit("wandb", wandb="project")
    assert given["project"] == "project" and given["sync_tensorboard"]
    assert given["config"]["train"]["steps"] == 12 and given["name"] == "wandb"
    assert [*(runs.folder / "wandb" / "tensorboard").glob("events*")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_is_a_request(number, capfd):
    before = signal.getsignal(number)
    with interruption() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
    assert capfd.readouterr().err.count("a second signal ends the process at once") == 1
    assert signal.getsignal(number) == before


def test_second_signal_ends_the_process():
    code = (
        "import signal\nfrom experiments.train import interruption\n"
        "with interruption():\n"
        "  signal.raise_signal(signal.SIGTERM)\n  signal.raise_signal(signal.SIGINT)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert process.returncode == -signal.SIGINT


EPOCH = Epoch(steps=7, examples=60, tokens=1000)


@pytest.mark.parametrize(
    "text, steps",
    [
        ("5 steps", 5),
        ("0.5 epochs", 4),
        ("120 examples", 14),
        ("1e3 tokens", 7),
        ("1 tokens", 1),
        (" 0.07  epochs", 1),
    ],
)
def test_every_unit_of_a_duration_counts_steps(text, steps):
    train = TrainPart(duration=text, steps=20, warmup_steps=0)
    resolved = with_steps(train, lambda: EPOCH)
    assert (resolved.steps, resolved.duration, train.steps) == (steps, "", 20)


@pytest.mark.parametrize("text", ["-1 steps", "0 steps", "1/0 steps", "inf steps", "3 epoch", "3"])
def test_mistakes_in_a_duration_are_one_sentence(text):
    with pytest.raises(ValueError, match="duration"):
        TrainPart(duration=text)


def test_warmup_that_is_longer_than_the_duration_becomes_a_quarter():
    train = TrainPart(duration="1 epochs", steps=5, warmup_steps=700)
    resolved = with_steps(train, lambda: EPOCH)
    assert resolved.warmup_steps == resolved.steps // 4
    assert with_steps(TrainPart(steps=200), None).steps == 200


PAIRS = EncodedExamples([EncodedPair([3] * 2, [3] * 3), EncodedPair([3], [3]), ([3] * 3, [3] * 2)])
TEXTS = EncodedExamples([([3, 4],), ([5],)])


@pytest.mark.parametrize(
    "data, epoch",
    [
        # A batch of 8 positions has two rows of 4.
        (ShuffledBatches(PAIRS, Buckets([4], 8), seed=0), Epoch(steps=2, examples=3, tokens=9)),
        (ShuffledBatches(PAIRS, PackedRows((6, 7), 14), seed=0), Epoch(1, examples=3, tokens=9)),
        (ShuffledBatches(TEXTS, PackedRows([5], 15), seed=0), Epoch(Fraction(1, 3), 2, tokens=5)),
        (Windows(np.arange(11), context=3, size=2, seed=0), Epoch(2, 4, tokens=10)),
    ],
)
def test_steps_examples_and_tokens_of_an_epoch(data, epoch):
    assert data.epoch == epoch

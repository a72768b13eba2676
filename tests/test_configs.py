"""Every configuration that can be launched: its card, its tiny form, and every field read."""

import ast
import dataclasses
import importlib
import re
from pathlib import Path

import jax
import pytest
from ml_collections import ConfigDict

from experiments.commands import train as training
from experiments.commands.evaluate import evaluate
from experiments.config import Config
from experiments.errors import UsageError
from experiments.registry import TASKS
from experiments.workdir import Workdir
from run import EXPERIMENTS, read_config
from tests.experiments.data.prepared import NAME, prepare

REPOSITORY = Path(__file__).resolve().parent.parent
HELPERS = {"defaults", "forms"}
NAMES = sorted(path.stem for path in (REPOSITORY / "configs").glob("*.py"))
LAUNCHABLE = [name for name in NAMES if name not in HELPERS]
# What is no run of its own has a test of its own.
OTHERS = {
    *("benchmark", "benchmark_models", "ledger", "presets", "pretrained"),
}
RUNS = [name for name in LAUNCHABLE if name not in OTHERS]
# Who trains and translates here: a recurrent model, and one by beams; door/ does so greedily.
# The other translators differ in what they learn and from what: that their steps fit together is
# seen by tracing them, and to compile them all would take longer than all the rest.
TRANSLATES = {"toy_translation_rnn", "multi30k"}
TRACED = [
    name
    for name in RUNS
    if importlib.import_module(f"configs.{name}").get_config().task == "translation"
    and name not in TRANSLATES
]
MEASURED_AGAIN = {
    "char_lm": "test",
    "masked_lm": "test",
    "digits": "test",
    "word_vectors": "test",
}
# Fields that choose the types of the others, and fields of a choice that no recipe makes.
UNREAD = {"task", "architecture", "data.name", "data.cutoff"}
UNREAD |= {"train.plateau_patience", "train.plateau_factor"}
# Fields that are read when a state exists: by the tiny forms that train.
READ_LATER = {"data.tokenized", "decoding.hypotheses"}
READ_LATER |= {f"train.{name}_every" for name in ("log", "evaluate", "sample", "checkpoint")}
READ_LATER |= {"train.average", "train.patience"}
FORMS = {"presets": "gpt2_small"}  # what has no form without a name


@pytest.fixture(autouse=True)
def standard_promotion():
    """Optax multiplies integer steps with floats, which the strict session would refuse."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    """A folder of files like those of SCAN, which the project does not own."""
    place = tmp_path_factory.mktemp("scan")
    long = ["IN: walk and jump twice OUT: " + " ".join(["I_WALK", "I_JUMP"] * 14)] * 3
    short = ["IN: walk OUT: I_WALK", "IN: jump and jump twice OUT: I_JUMP I_JUMP I_JUMP"] * 5
    for split in ("simple", "length"):
        (place / f"{split}_train.txt").write_text("\n".join(short) + "\n")
        (place / f"{split}_test.txt").write_text("\n".join(long) + "\n")
    return place


@pytest.fixture(scope="session")
def dataset(tmp_path_factory, captions):
    """A folder of TFDS with the same sentences."""
    place = tmp_path_factory.mktemp("tfds")
    splits = {"train": "train", "validation": "validation", "test": "test_2016"}
    lines = {
        split: [(captions / f"{stem}.{side}").read_text().splitlines() for side in ("en", "de")]
        for split, stem in splits.items()
    }
    prepare(place, {split: [*zip(*sides, strict=True)] for split, sides in lines.items()})
    return {"path": str(place), "dataset": NAME, "source": "en", "target": "de"}


@pytest.fixture
def load(commands, captions, dataset):
    """Reads a configuration; what reads files of others reads those above."""

    def load(name, form=""):
        config = importlib.import_module(f"configs.{name}").get_config(form)
        name = config.data.name if "data" in config else None
        if name == "scan":
            config.data.update({"path": str(commands), "validation": 2})
        if name == "parallel":
            config.data.path = str(captions)
        if name == "tfds":
            config.data.update(dataset)
        return config

    return load


def watched(part, seen, prefix=""):
    """Return a copy of a config that adds the name of each field that is read to a set."""
    kind, names = type(part), {field.name for field in dataclasses.fields(part)}

    class Watched(kind):
        def __getattribute__(self, name):
            if name in names:
                seen.add(prefix + name)
            return super().__getattribute__(name)

    copy = object.__new__(Watched)
    for name in names:
        value = getattr(part, name)
        is_part = dataclasses.is_dataclass(value)
        object.__setattr__(
            copy, name, watched(value, seen, f"{prefix}{name}.") if is_part else value
        )
    return copy


def fields(config, prefix=""):
    """Yield the names of all fields, without those of published scores, which decide nothing."""
    for name, value in config.items():
        if name == "literature":
            continue
        yield from (
            fields(value, f"{prefix}{name}.") if isinstance(value, ConfigDict) else [prefix + name]
        )


@pytest.mark.parametrize("name", LAUNCHABLE)
def test_the_card_says_command_hardware_time_and_score(name):
    card = ast.get_docstring(ast.parse((REPOSITORY / "configs" / f"{name}.py").read_text()))
    for entry in ("command ", "hardware ", "time ", "score "):
        assert entry in card
    assert f"configs/{name}.py" in card
    assert not re.search(r"\b(TODO|TIME|SCORE)\b", card)
    for page in re.findall(r"docs/\w+\.md", card):
        assert (REPOSITORY / page).exists()


@pytest.mark.parametrize("name", LAUNCHABLE)
def test_the_full_form_is_a_configuration_that_can_run(name, load):
    config = load(name, FORMS.get(name, ""))
    read_config(config)
    if config.task not in TASKS:
        getattr(EXPERIMENTS[config.task].load(), "check", lambda _: None)(config)
    if name not in FORMS:
        assert {*fields(config)} == {*fields(load(name, "tiny"))}


def two_steps(config):
    """Return a typed config of two steps, and the set of the fields that are read of it."""
    config.train.steps, config.train.warmup_steps, seen = 2, 1, set()
    return watched(Config.read(config.to_dict()), seen), seen


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    workdir = Workdir(tmp_path / "run")
    workdir.path.mkdir()
    monkeypatch.setattr(workdir, "claim", lambda config: None)  # reads it all, to write it down
    monkeypatch.setattr(training, "draw_learning_curve", lambda *_: None)  # as every run does
    return workdir


@pytest.mark.parametrize("name", [name for name in RUNS if name not in TRACED])
def test_the_tiny_form_takes_two_steps_and_reads_every_field(name, load, workdir, cache):
    config = load(name, "tiny")
    typed, seen = two_steps(config)
    training.train(typed, workdir, cache)
    results = workdir.results.read_text()
    if name in MEASURED_AGAIN:
        workdir.results.unlink()
        typed = Config.read(config.to_dict())
        evaluate(typed, workdir, cache)
        assert workdir.results.read_text() == results
        evaluate(typed, workdir, cache, MEASURED_AGAIN[name])
        assert workdir.results.read_text() == results
        with pytest.raises(UsageError, match="--split must be one of"):
            evaluate(typed, workdir, cache, "tset")
    assert {*fields(config)} - seen - UNREAD == set()


@pytest.mark.parametrize("name", TRACED)
def test_the_steps_of_the_tiny_form_fit_together_and_read_every_field(name, load, cache):
    config = load(name, "tiny")
    typed, seen = two_steps(config)
    task = TASKS[config.task].prepare(typed, cache)
    assert all(len(task.ids(split)) for split in task.known_splits)
    learner, batch = task.learner, task.training_batches()[0]
    learner.trace(batch)
    state, _ = jax.eval_shape(learner.train_step, learner.abstract_state, batch)
    assert jax.tree.structure(state) == jax.tree.structure(learner.abstract_state)
    jax.eval_shape(learner.evaluate_step, state.parameters, task.batches("validation")[0])
    assert task.translator
    assert {*fields(config)} - seen - UNREAD - READ_LATER == set()


def test_an_unknown_form_is_refused(load):
    with pytest.raises(ValueError, match="has the form 'tiny' or none, got 'tinyy'"):
        load("toy_translation", "tinyy")

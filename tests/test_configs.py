"""Every configuration that can be launched: its card, its tiny form, and every field read."""

import ast
import dataclasses
import importlib
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments.commands import train as training
from experiments.commands.evaluate import evaluate
from experiments.compilation import compiled
from experiments.config import Config
from experiments.errors import UsageError
from experiments.registry import TASKS
from experiments.tasks.task import Task
from experiments.tasks.translation import Translation
from experiments.training import learner, step
from experiments.workdir import Workdir
from run import EXPERIMENTS, read_config
from tests.experiments.data.corpora import load_split

REPOSITORY = Path(__file__).resolve().parent.parent
HELPERS = {"defaults", "forms"}
NAMES = sorted(path.stem for path in (REPOSITORY / "configs").glob("*.py"))
LAUNCHABLE = [name for name in NAMES if name not in HELPERS]
BENCHMARKS = {"benchmark", "benchmark_models", "benchmark_steps"}
OTHERS = BENCHMARKS | {"ledger", "presets", "pretrained"}  # no training
TRAINED = [name for name in LAUNCHABLE if name not in OTHERS]
FORMS = {"presets": "gpt2_small"}  # presets have no form without a name


def load(name, form=""):
    return importlib.import_module(f"configs.{name}").get_config(form)


# Their programs are those of other configurations in other sizes: the training step is compiled and
# taken, and evaluation is only traced.
EVALUATION_TRACED = {"denoising", "multi30k_deen", "multi30k_rnn", "planted_cue", "reverse", "scan"}
EVALUATION_TRACED |= {"scan_length", "summary", "tfds_translation", "toy_translation"}
EVALUATION_TRACED |= {
    f"toy_translation_{name}" for name in ("gqa", "llama", "local_global", "postnorm")
}
# Tests in tests/command_line decode greedily; decoding takes as long to compile as training.
TRANSLATE = {"toy_translation_rnn", "multi30k"}
# Tasks other than translation are measured again: all test splits, or one.
MEASURED_AGAIN = {"char_lm": None, "masked_lm": "test", "digits": None, "word_vectors": "test"}
# Fields that choose the types of the others, and fields of a choice that no recipe makes.
UNREAD = {"task", "architecture", "data.name", "data.cutoff"}
UNREAD |= {"train.plateau_patience", "train.plateau_factor", "train.start_except"}
READ_BY_DECODING = {"data.tokenized"} | {
    f"decoding.{name}" for name in ("hypotheses", "length_penalty", "n_best")
}


@pytest.fixture(autouse=True)
def standard_promotion():
    """Optax multiplies integer steps with floats, which the strict session would refuse."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


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
def test_full_form_is_valid_and_has_the_fields_of_the_tiny_form(name):
    config = load(name, FORMS.get(name, ""))
    read_config(config)
    if config.task not in TASKS:
        getattr(EXPERIMENTS[config.task].load(), "check", lambda _: None)(config)
    if name not in FORMS:
        assert {*fields(config)} == {*fields(load(name, "tiny"))}


def traced(function, **_):
    """Stand in for `compiled`: return a function that traces and returns ones."""

    def ones(leaf):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(1)
        return jax.device_put(np.ones(leaf.shape, leaf.dtype))

    def run(*arguments):
        return jax.tree.map(ones, jax.eval_shape(function, *arguments))

    run.trace = jax.jit(function).trace
    return run


def training_alone(function, **options):
    """Stand in for `compiled`: the training step is compiled, other functions are traced."""
    return (compiled if function.__name__ == "train_step" else traced)(function, **options)


def eager_at_first(function, **options):
    """Stand in for `compiled`: initial parameters are fewer operations than a program of them."""
    is_used_once = function.__name__ == "make_state"
    return function if is_used_once else compiled(function, **options)


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    workdir = Workdir(tmp_path / "run")
    workdir.path.mkdir()
    monkeypatch.setattr(workdir, "claim", lambda config: None)  # it reads every field
    monkeypatch.setattr(training, "draw_learning_curve", lambda *_: None)
    return workdir


@pytest.mark.parametrize("name", TRAINED)
def test_tiny_form_trains_and_reads_every_field(name, workdir, cache, monkeypatch):
    config = load(name, "tiny")
    config.train.steps, config.train.warmup_steps, seen = 2, 1, set()
    typed, unread = watched(Config.read(config.to_dict()), seen), UNREAD
    monkeypatch.setattr(learner, "compiled", eager_at_first)
    if name in EVALUATION_TRACED:
        monkeypatch.setattr(step, "compiled", training_alone)
    if config.task == "translation" and name not in TRANSLATE:
        monkeypatch.setattr(Translation, "measure", Task.measure)
        monkeypatch.setattr(Translation, "sample", lambda *_: "")
        monkeypatch.setattr(Translation, "artifacts", lambda *_: None)
        unread = UNREAD | READ_BY_DECODING
    training.train(typed, workdir, cache)
    results = workdir.results.read_text()
    if name in MEASURED_AGAIN:
        workdir.results.unlink()
        typed = Config.read(config.to_dict())
        evaluate(typed, workdir, cache, MEASURED_AGAIN[name])
        assert workdir.results.read_text() == results
        with pytest.raises(UsageError, match="--split must be one of"):
            evaluate(typed, workdir, cache, "tset")
    assert {*fields(config)} - seen - unread == set()


@pytest.mark.parametrize("form", ["", "tiny"])
@pytest.mark.parametrize("name", TRAINED)
def test_validation_is_measured_five_times(name, form):
    train = load(name, form).train
    assert train.steps // train.evaluate_every >= 5


def test_samples_of_captions_are_the_same_in_tfds(cache):
    parallel, tfds = (
        Config.read(load(name, "tiny").to_dict()).data for name in ("multi30k", "tfds_translation")
    )
    for split in ("train", "validation", "test"):
        assert [*load_split(parallel, split, cache)] == [*load_split(tfds, split, cache)]


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="has the form 'tiny' or none, got 'tinyy'"):
        load("toy_translation", "tinyy")

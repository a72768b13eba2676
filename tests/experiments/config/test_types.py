"""Configs: built from trees of plain values, checked once, and written as JSON."""

import json
import re
from functools import reduce

import pytest

from attention.modules import ACTIVATIONS, NORMS, POSITIONS
from experiments.cli import parse
from experiments.config import Config
from experiments.config.parts import EncoderDecoderModel, ExpertsPart, RecurrentModel
from experiments.data.toy import ToyData
from experiments.errors import UsageError
from experiments.registry import TASKS, task

REGISTRIES = {"positions": POSITIONS, "qk_norm": NORMS, "activation": ACTIVATIONS}


def read(task="translation", **parts):
    return Config.read({"task": task, **parts})


@pytest.mark.parametrize("task", TASKS)
def test_a_config_survives_json(task):
    config = read(task, seed=3)
    assert Config.read(json.loads(config.to_json())) == config


def test_parts_have_the_types_of_the_task_or_are_left_out():
    assert (read().data, type(read().model)) == (ToyData(), EncoderDecoderModel)
    assert {"text", "literature"}.isdisjoint(read().to_dict())
    assert "decoding" not in read("masked_language_model").to_dict()
    assert "experts" not in read("language_model").to_dict()["model"]
    model = read("language_model", model={"experts": {"number": 8}}).model
    assert model.experts == ExpertsPart(number=8)


@pytest.mark.parametrize(
    "flag, value",
    [
        ("model.num_kv_heads=None", None),
        ("model.remat=true", True),
        ("train.learning_rate=1", 1.0),
        ("train.start_from=12", "12"),
        ("batch.bucket_lengths=8,48", (8, 48)),
        ("train.evaluators=('bleu',)", ("bleu",)),
        ("model.per_layer=({'window': 4},)", ({"window": 4},)),
        ("model.per_layer=[{'window': 4}]", ({"window": 4},)),
        ("model.rotary.base=100", 100.0),
        ("model.embedding_scale=2.0", 2.0),
        ("model.embedding_scale=sqrt_width", "sqrt_width"),
        ("train.steps 700 --mode describe", 700),
        ("model.remat", True),
    ],
)
def test_the_text_of_a_flag_is_a_value_of_the_type_of_its_field(flag, value):
    arguments = [f"--config.{flag}"] if "{" in flag else f"--config.{flag}".split()
    config = parse(["run.py", *arguments]).config
    read = reduce(getattr, re.match(r"[\w.]+", flag)[0].split("."), config)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize("name, registry", REGISTRIES.items())
def test_a_name_that_a_plugin_registers(name, registry, monkeypatch):
    with pytest.raises(UsageError, match=f"model.{name} must be one of"):
        read(model={name: "mine"})
    monkeypatch.setitem(registry, "mine", next(iter(registry.values())))
    assert getattr(read(model={name: "mine"}).model, name) == "mine"


@pytest.mark.parametrize(
    "tree, sentence",
    [
        ({"task": None}, "task must be one of .*, got None"),
        (
            {"data": {"name": "digits"}},
            "data.name of task='translation' must be one of toy, .* got 'digits'",
        ),
        ({"architecture": "recurrent", "model": {"tie": 3}}, "has no field 'model.tie', it has"),
        ({"model": {"rotary": {"bas": 1.0}}}, "has no field 'model.rotary.bas'"),
        ({"text": {"size": 300}}, "data.name='toy' .* has no part 'text'"),
        ({"model": {"width": True}}, "model.width must be an integer, got True"),
        ({"model": {"gated": 1}}, "model.gated must be True or False, got 1"),
        ({"train": {"learning_rate": None}}, "train.learning_rate must be a number, got None"),
        ({"batch": {"bucket_lengths": 8}}, "batch.bucket_lengths must be a list, got 8"),
        ({"model": {"per_layer": [{"window": -1}]}}, "model.per_layer: window must be at least 0"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_path_of_the_field(tree, sentence):
    with pytest.raises(UsageError, match=sentence):
        Config.read({"task": "translation"} | tree)


def test_warm_up_is_made_to_fit_unless_it_is_given():
    config = parse(["run.py", "--config.train.steps=40"]).config
    assert (config.train.steps, config.train.warmup_steps) == (40, 10)
    assert parse(["run.py", "--config.train.steps=400"]).config.train.warmup_steps == 100


def test_a_flag_chooses_architecture_and_data():
    flags = "--config.architecture=recurrent", "--config.model.cell=lstm", "--config.data.name=csv"
    config = parse(["run.py", *flags, "--config.data.target=label", "--config.batch.packed=False"])
    assert config.config.model == RecurrentModel(cell="lstm")
    assert (config.config.data.target, config.config.text.kind) == ("label", "bpe")


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="task='translation' is registered already"):
        task("translation", None)(type("Mine", (), {}))

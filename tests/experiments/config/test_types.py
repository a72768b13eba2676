"""Typed configs: built from trees of plain values, checked once, and written as JSON."""

import json
import subprocess
import sys

import pytest

from experiments.cli import parse
from experiments.config import Config
from experiments.config.build import as_config_dict, build, helps
from experiments.config.model import DecoderModel, EncoderDecoderModel, ExpertsPart, RecurrentModel
from experiments.data.toy import ToyData
from experiments.errors import UsageError
from experiments.registry import TASKS
from experiments.workdir import Workdir


def read(task="translation", **parts):
    return Config.read({"task": task, **parts})


@pytest.mark.parametrize("task", TASKS)
def test_a_config_survives_json_and_a_config_dict(task):
    config = read(task, seed=3)
    assert Config.read(json.loads(config.to_json())) == config
    assert Config.read(as_config_dict(config).to_dict()) == config


def test_names_choose_the_types():
    assert read().data == ToyData()
    assert type(read().model) is EncoderDecoderModel
    assert type(read(architecture="recurrent").model) is RecurrentModel
    assert read("masked_language_model").decoding is None
    assert read(data={"name": "parallel"}).text.kind == "bpe"


def test_values_are_converted_to_the_type_of_the_field():
    config = read(batch={"bucket_lengths": [8, 14]}, train={"learning_rate": 1})
    assert config.batch.bucket_lengths == (8, 14)
    assert isinstance(config.train.learning_rate, float)


def test_a_part_that_is_none_is_left_out():
    assert "experts" not in read("language_model").to_dict()["model"]
    assert {"text", "literature"}.isdisjoint(read().to_dict())
    experts = build(DecoderModel, {"experts": {"number": 8}}, "model.").experts
    assert experts == ExpertsPart(number=8)


def test_a_field_that_is_none_takes_a_value_by_its_flag(tmp_path):
    Workdir(tmp_path).claim(read())

    def number(value):
        flag = f"--config.model.num_kv_heads={value}"
        return parse(["run.py", f"--workdir={tmp_path}", flag]).config.model.num_kv_heads

    assert number(2) == 2
    with pytest.raises(UsageError, match="invalid literal for int"):
        number("two")


@pytest.mark.parametrize(
    "tree, sentence",
    [
        ({"task": "translatoin"}, "got 'translatoin'; did you mean 'translation'?"),
        ({}, "the config needs the field 'task'"),
        ({"data": {"name": "toys"}}, "data.name must be one of toy, .*; did you mean 'toy'?"),
        ({"data": {"name": "digits"}}, "contains images, and task='translation' reads pairs: choo"),
        ({"model": {"widht": 3}}, "architecture='transformer' has no field 'model.widht', it has"),
        ({"architecture": "recurrent", "model": {"width": 3}}, "has no field 'model.width'"),
        ({"model": {"rotary": {"bas": 1.0}}}, "has no field 'model.rotary.bas'"),
        ({"sede": 3}, "the config has no field 'sede'"),
        ({"text": {"size": 300}}, "data.name='toy' .* has no part 'text'"),
        ({"model": {"width": "wide"}}, "model.width must be a whole number, got 'wide'"),
        ({"model": {"width": True}}, "model.width must be a whole number, got True"),
        ({"model": {"gated": 1}}, "model.gated must be True or False, got 1"),
        ({"train": {"learning_rate": None}}, "train.learning_rate must be a number, got None"),
        ({"batch": {"bucket_lengths": 8}}, "batch.bucket_lengths must be a list, got 8"),
        ({"batch": {"bucket_lengths": ["a"]}}, "must be a whole number, got 'a'"),
        ({"model": {"norm": "lyer"}}, "model.norm must be one of layer, rms, got 'lyer'"),
        ({"data": 3}, "data must be a mapping, got 3"),
        ({"data": {"sizes": {"test": 0}}}, "data.sizes.test must be at least 1, got 0"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_path_of_the_field(tree, sentence):
    experiment = {} if tree == {} else {"task": "translation"}
    with pytest.raises(UsageError, match=sentence):
        Config.read(experiment | tree)


def test_every_field_of_a_flag_has_a_help():
    for task in TASKS:
        config = read(task)
        texts, tree = helps(config), as_config_dict(config)
        for part in ("batch", "model", "train"):
            for name, value in tree[part].items():
                assert hasattr(value, "keys") or f"{part}.{name}" in texts


def test_nothing_heavy_is_imported():
    program = (
        "import sys, experiments.config\n"
        "assert {'jax', 'numpy', 'flax', 'ml_collections'}.isdisjoint(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

"""The types of configs are defined without jax: their names equal those of the registries."""

import dataclasses
import inspect

import pytest

from attention import modules
from attention.modules import recurrent
from attention.primitives.attend import IMPLEMENTATIONS
from experiments import optimizer, registry
from experiments.config import data, model, train
from experiments.config.model import EncoderDecoderModel, RecurrentModel
from experiments.data import subwords
from experiments.data.tokenizers import EOS
from experiments.tasks import translation


@pytest.mark.parametrize(
    "names, known",
    [
        (model.ACTIVATIONS, modules.ACTIVATIONS),
        (model.NORMS, modules.NORMS),
        (model.POSITIONS, modules.POSITIONS),
        (model.INITIALIZERS, modules.INITIALIZERS),
        (model.POOLINGS, modules.POOLINGS),
        (model.CELLS, recurrent.CELLS),
        (model.ATTENTIONS, recurrent.ATTENTIONS),
        (model.IMPLEMENTATIONS, [one.name for one in IMPLEMENTATIONS]),
        (registry.TASKS["translation"].parts.models, translation.ARCHITECTURES),
    ],
)
def test_names_equal_those_of_the_registry(names, known):
    assert {*names} == {*known}


@pytest.mark.parametrize(
    "field, registry",
    [
        ("activation", modules.ACTIVATIONS),
        ("norm", modules.NORMS),
        ("qk_norm", modules.NORMS),
        ("positions", modules.POSITIONS),
        ("kernel_init", modules.INITIALIZERS),
    ],
)
def test_a_name_that_a_plugin_registers(field, registry, monkeypatch):
    with pytest.raises(ValueError, match=f"{field} must be one of"):
        EncoderDecoderModel(**{field: "mine"})
    monkeypatch.setitem(registry, "mine", next(iter(registry.values())))
    assert getattr(EncoderDecoderModel(**{field: "mine"}).library(), field) == "mine"


def test_absolute_positions_are_those_added_to_embeddings():
    added = [name for name, scheme in modules.POSITIONS.items() if scheme.embed is not None]
    assert {*model.ABSOLUTE} == {*added}


@pytest.mark.parametrize(
    "part, library",
    [
        (EncoderDecoderModel, modules.TransformerConfig),
        (RecurrentModel, modules.RecurrentConfig),
        (model.RotaryPart, modules.Rotary),
    ],
)
def test_every_field_is_one_of_the_library(part, library):
    ours, theirs = ({one.name for one in dataclasses.fields(kind)} for kind in (part, library))
    assert ours <= theirs


def test_a_vocabulary_is_shared_where_the_source_shares_it():
    for name, each in registry.DATASETS.items():
        text = registry.DATASETS[name].source.text
        is_shared = None if isinstance(text, subwords.Subwords) else getattr(text, "shared", False)
        assert each.config.is_shared == is_shared, name


def test_limits_equal_those_of_the_data():
    assert data.SMALLEST_SUBWORDS == EOS + 2 + 256


def test_every_schedule_is_known():
    for name in train.SCHEDULES:
        optimizer.schedule(train.TrainPart(schedule=name, warmup_steps=1, steps=3))
    assert inspect.getsource(optimizer.schedule).count('":') == len(train.SCHEDULES)

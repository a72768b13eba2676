"""The benchmark of models: that both sides of a figure compute the same, and what is reported."""

import importlib

import jax
import numpy as np
import pytest

import run
from configs import benchmark_models
from experiments.benchmarks.models import decoding, depth, suite
from experiments.benchmarks.models.figure import Figure
from experiments.errors import UsageError


@pytest.fixture(autouse=True)
def standard_promotion():
    """Optax multiplies integer steps with floats, which the strict session would refuse."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def config():
    return benchmark_models.get_config("tiny")


def test_with_a_cache_and_without_the_same_is_said(config):
    ways = decoding.programs(config.decoding, batch=2)
    greedy, recomputed, beam = (ways[name]() for name in ("greedy", "recomputed", "beam"))
    np.testing.assert_array_equal(greedy.tokens, recomputed.tokens)
    assert greedy.lengths.tolist() == [config.decoding.length] * 2
    assert beam.tokens.shape == (2, config.decoding.beam, config.decoding.length)


def test_scanned_and_unrolled_layers_are_the_same_model(config):
    learner = depth.learner(config.depth, 2, depth.scanned)
    model = jax.jit(lambda: learner.initial_state().parameters)()
    tokens = np.arange(16).reshape(2, 8)
    both = [
        learner.apply(lambda model, tokens, forward=forward: forward(model, tokens))(model, tokens)
        for forward in (depth.scanned, depth.unrolled)
    ]
    np.testing.assert_allclose(*both, rtol=1e-5, atol=1e-5)


def test_the_plain_loop_has_the_same_model():
    """As many parameters, and a loss that falls."""
    pytest.importorskip("torch")
    torch_gpt = importlib.import_module("experiments.benchmarks.models.torch_gpt")
    config = benchmark_models.get_config("tiny").characters
    model = torch_gpt.TorchGPT(config, vocab_size=11)
    ours = depth.learner(config, config.model.decoder_layers, depth.scanned)
    tokens = np.arange(22).reshape(2, 11) % 11
    before = model.loss(tokens, tokens)
    for _ in range(3):
        model.learn(tokens, tokens)
    assert model.loss(tokens, tokens) < before
    assert model.num_parameters == ours.num_parameters - (depth.VOCABULARY - 11) * 32


def test_the_page_judges():
    figures = [Figure("this ÷ that", 0.4, 0.5, "2 s ÷ 5 s"), Figure("more", 0.6, 0.5, "3 s ÷ 5 s")]
    page = suite.page(figures, ["characters: no torch"], "python run.py")
    assert "| this ÷ that | 2 s ÷ 5 s | 0.40 | 0.50 | met |" in page
    assert "| more | 3 s ÷ 5 s | 0.60 | 0.50 | **not met** |" in page
    assert "- characters: no torch" in page


def test_a_part_of_it_runs_from_the_door(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(run.__file__.rpartition("/")[0])
    arguments = ["--config=configs/benchmark_models.py:tiny", "--config.parts=decoding"]
    where = [f"--workdir={tmp_path / 'run'}", f"--cache={tmp_path}"]
    assert run.main(["run.py", "--mode=benchmark", *arguments, *where]) == 0
    assert (tmp_path / "run" / "models.md").read_text() in capsys.readouterr().out


@pytest.mark.parametrize(
    "field, value, sentence",
    [
        ("parts", "decodin", "did you mean 'decoding'"),
        ("rounds", 0, "rounds must be at least 1, got 0"),
        ("page", "nowhere/page.md", "has no folder to be written to"),
    ],
)
def test_a_mistake_is_one_sentence(config, field, value, sentence):
    config[field] = value
    with pytest.raises(UsageError, match=sentence):
        suite.check(config)

"""The benchmark of models: both sides of a figure compute the same; the report."""

import importlib
import json
from dataclasses import replace

import chex
import jax
import numpy as np
import pytest

import run
from configs import benchmark_models
from experiments.benchmarks.models import (
    decoding,
    depth,
    ours,
    sentences,
    suite,
    training,
    translating,
)
from experiments.benchmarks.models.figure import Figure, Peer, Timed
from experiments.benchmarks.record import as_json
from experiments.checkpoint import CheckpointWriter, Progress
from experiments.compilation import compiled
from experiments.config import Config
from experiments.data.rows import EncodedPair
from experiments.data.vocabulary import BOS, EOS, PAD
from experiments.errors import UsageError
from experiments.tasks.translation import Translation
from experiments.workdir import Workdir


@pytest.fixture(autouse=True)
def standard_promotion():
    """Optax multiplies integer steps with floats, which the strict session would refuse."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def config():
    return benchmark_models.get_config("tiny")


@pytest.fixture
def captions(config, tmp_path):
    """The tiny form with a few sentences to translate."""
    config.translation.data.path = str(tmp_path)
    config.translation.text.size = 300
    config.translation.model.dropout = 0.0  # what is dropped, each draws in its own way
    words = ["a", "man", "two", "dogs", "run", "small", "red", "over", "the", "green", "grass"]
    random = np.random.default_rng(0)
    for split, number in (("train", 30), ("validation", 1), ("test_2016", 7)):
        lines = [" ".join(random.choice(words, random.integers(1, 6))) for _ in range(number)]
        (tmp_path / f"{split}.en").write_text("\n".join(lines) + "\n")
        (tmp_path / f"{split}.de").write_text("\n".join(line[::-1] for line in lines) + "\n")
    return config


def test_cached_decoding_equals_recomputation(config):
    ways = decoding.programs(config.decoding, batch=2)
    greedy, recomputed, beam = (ways[name]() for name in ("greedy", "recomputed", "beam"))
    np.testing.assert_array_equal(greedy.tokens, recomputed.tokens)
    assert greedy.lengths.tolist() == [config.decoding.length] * 2
    assert beam.tokens.shape == (2, config.decoding.num_beams, config.decoding.length)


def test_scanned_and_unrolled_layers_are_the_same_model(config, monkeypatch):
    """And have the same initial parameters, of the program that a run has."""
    monkeypatch.setattr("experiments.learner.compiled", compiled)
    small = depth.language_model(config.depth)
    scanned, unrolled = depth.learner(small, 2), depth.learner(small, 2, scan=False)
    assert scanned.num_parameters == unrolled.num_parameters
    tokens = np.arange(16).reshape(2, 8)
    both = [
        learner.apply(lambda model, tokens: model(tokens).logits)(
            learner.initial_state().parameters, tokens
        )
        for learner in (scanned, unrolled)
    ]
    np.testing.assert_allclose(*both, rtol=1e-5, atol=1e-5)


@pytest.fixture
def torch(monkeypatch):
    """PyTorch with a compiler that returns its argument: compiling takes two minutes."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", lambda function: function)
    return torch


def test_torch_gpt_has_the_loss_of_our_model(torch):
    """With the same parameters. The loss decreases when it trains."""
    torch_gpt = importlib.import_module("experiments.benchmarks.peers.torch_gpt")
    config = Config.read(benchmark_models.get_config("tiny").characters.to_dict())
    learner = depth.learner(config, config.model.decoder_layers)
    parameters = learner.initial_state().parameters
    peer = torch_gpt.TorchGPT(config, depth.VOCABULARY)
    assert peer.num_parameters == learner.num_parameters
    (stacked,) = parameters["decoder"]["layers"]["blocks"].values()
    weights = {}
    for layer in range(config.model.decoder_layers):

        def matrix(part, name, layer=layer):
            kernel = np.array(stacked[part]["sublayer"][name]["kernel"][...])[layer]
            into = kernel.shape[0] if name != "output" else kernel.shape[0] * kernel.shape[1]
            return kernel.reshape(into, -1).T

        mixed = [matrix("self_attention", name) for name in ("query", "key", "value")]
        weights |= {
            f"blocks.{layer}.mix.weight": np.concatenate(mixed),
            f"blocks.{layer}.out.weight": matrix("self_attention", "output"),
            f"blocks.{layer}.feed_forward.0.weight": matrix("feed_forward", "up"),
            f"blocks.{layer}.feed_forward.2.weight": matrix("feed_forward", "down"),
        }
    weights["tokens.weight"] = np.array(parameters["embedding"]["tokens"][...])
    weights = {name: torch.from_numpy(array.copy()) for name, array in weights.items()}
    loaded = peer.model.load_state_dict(weights, strict=False)
    assert not loaded.unexpected_keys
    assert all("norm" in name for name in loaded.missing_keys)  # both start as ones and zeros
    tokens = np.arange(22).reshape(2, 11) % 11
    batch = ours.TextBatch(tokens, tokens, np.ones(tokens.shape, bool))
    before = peer.loss(tokens, tokens)
    assert before == pytest.approx(learner.losses(parameters, [batch])["nll"], rel=1e-5)
    tuned = torch_gpt.TorchGPT(config, depth.VOCABULARY, tuned=True)
    tuned.model.load_state_dict(peer.model.state_dict())
    for _ in range(3):
        peer.learn(tokens, tokens)
        tuned.learn(tokens, tokens)
    assert peer.loss(tokens, tokens) < before
    assert tuned.loss(tokens, tokens) == pytest.approx(peer.loss(tokens, tokens), rel=1e-4)


def pairs_of(packed):
    """Return the pairs in the rows of a packed batch."""
    pairs = []
    for row, segments in enumerate(packed.target.segments):
        for segment in range(1, segments.max() + 1):
            sides = (side.labels[row][side.segments[row] == segment][:-1] for side in packed)
            pairs.append(EncodedPair(*(ids.tolist() for ids in sides)))
    return pairs


@pytest.mark.usefixtures("torch")
def test_torch_transformer_trains_like_our_model(captions, tmp_path):
    """With the same parameters and pairs, padded or packed, the loss of every step is equal."""
    torch_transformer = importlib.import_module("experiments.benchmarks.peers.torch_transformer")
    settings = Config.read(captions.translation.to_dict())
    task = ours.load_translation(settings, tmp_path)
    vocab_size = len(task.tokenizers.target)
    peer = torch_transformer.TorchTransformer(settings, vocab_size)
    assert peer.num_parameters == task.learner.num_parameters
    tuned = torch_transformer.TorchTransformer(settings, vocab_size, tuned=True)
    state = task.learner.initial_state()
    peer.load(state.parameters)
    tuned.load(state.parameters)
    packed = task.training_batches()[0]
    several = sentences.padded(pairs_of(packed))
    assert np.sum(packed.target.counted) == np.sum(several.target_labels != PAD)
    for _ in range(3):
        state, metrics = task.learner.train_step(state, packed)
        assert peer.learn(several) == pytest.approx(float(metrics["loss"]), rel=1e-4)
        assert tuned.learn(packed) == pytest.approx(float(metrics["loss"]), rel=1e-4)


def test_training_figures(captions, tmp_path):
    pytest.importorskip("torch")
    shuffled, by_length, packed = training.measure(captions, tmp_path)
    assert "batches of 128 pairs" in shuffled.name and "sorted by length" in by_length.name
    assert "packed rows" in packed.name
    assert min(figure.ratio for figure in (shuffled, by_length, packed)) > 0


# PyTorch uses nested tensors for padded sentences by default.
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("longest", [5, 25], ids=["of equal length", "of any length"])
def test_all_translators_have_equal_outputs(captions, tmp_path, longest):
    pytest.importorskip("torch")
    trial = translating.load_trial(captions, tmp_path)
    # With initial parameters, outputs depend little on the previous tokens, and none ends.
    parameters = jax.tree.map(lambda leaf: 3 * leaf, trial.parameters)
    limits = {"max_tokens": longest, "min_tokens": 5 if longest == 5 else 0}
    if longest != 5:
        table = parameters["target_embedding"]["tokens"]
        table[...] = table[...].at[EOS].multiply(6)  # so that some end
    stopping = replace(trial.stopping, **limits)
    trial = trial._replace(parameters=parameters, stopping=stopping)
    outputs = [list(ids) for ids in ours.make_translate(*trial[:3])()]
    lengths = {len(ids) for ids in outputs}
    assert lengths == {5} if longest == 5 else len(lengths) > 3
    assert len(np.unique(np.concatenate(outputs))) > 7
    for at_once in (translating.SENTENCES, 1):
        assert [list(ids) for ids in translating.in_torch(trial, at_once)()] == outputs
    pytest.importorskip("ctranslate2")
    captions.translation.decoding.length_penalty = 0.0  # CTranslate2 divides by n ** alpha
    trial = translating.load_trial(captions, tmp_path)
    trial = trial._replace(parameters=parameters, stopping=stopping)
    outputs = [list(ids) for ids in ours.make_translate(*trial[:3])()]
    assert translating.in_ctranslate(trial)() == outputs


def test_trial_loads_the_parameters_of_a_run(captions, tmp_path):
    captions.translating.workdir = str(tmp_path / "run")
    captions.translation.train.label_smoothing = 0.2  # the run has its own recipe
    trained, settings = Workdir(tmp_path / "run"), Config.read(captions.translation.to_dict())
    captions.translation.train.label_smoothing = 0.1
    with pytest.raises(UsageError, match="holds no run: train one with"):
        translating.load_trial(captions, tmp_path)
    trained.save_config(settings)
    task = Translation.prepare(settings, tmp_path)
    task.tokenizers.keep(trained.path)
    state = task.learner.initial_state()
    state = state._replace(parameters=jax.tree.map(lambda leaf: 3 * leaf, state.parameters))
    with CheckpointWriter(trained.checkpoints) as checkpoints:
        checkpoints.save(state, Progress())
    trial = translating.load_trial(captions, tmp_path)
    chex.assert_trees_all_equal(trial.parameters, state.parameters)
    assert trial.described == "by a trained model"
    assert trial.stopping == trial.task.stopping
    assert trial.task.config == settings
    captions.translation.model.norm_placement = "pre"  # the peers copy the model
    with pytest.raises(UsageError, match="norm_placement"):
        translating.load_trial(captions, tmp_path)
    captions.translation.model.norm_placement = "post"
    trained.save_fingerprints({"test": "another"})
    with pytest.raises(UsageError, match="the test split is another text than"):
        translating.load_trial(captions, tmp_path)


# PyTorch uses nested tensors for padded sentences by default.
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_translating_figures(captions, tmp_path):
    pytest.importorskip("ctranslate2")
    figures = [*translating.measure(captions, tmp_path)]
    assert len({figure.name for figure in figures}) == 3
    for figure in figures:
        assert "5 tokens each" in figure.name
        assert figure.theirs.note == "7 equal outputs" and figure.ratio > 0


def test_training_batch_is_packed(captions, tmp_path):
    """All training pairs fit in one batch here, some more than once."""
    task = ours.load_translation(Config.read(captions.translation.to_dict()), tmp_path)
    batch = task.training_batches()[0].target
    assert batch.counted.mean() > 0.8
    packed = " ".join(map(str, batch.labels.ravel().tolist()))
    for pair in task.ids("train"):
        assert " ".join(map(str, [*pair.target, EOS])) in packed


def test_a_peer_is_not_used_again_after_its_first_exception(capsys):
    calls = []

    def crash(made):
        calls.append(made)
        raise RuntimeError("no kernel\nmore")

    peer = Peer(lambda: 7)
    assert peer.run(lambda made: made + 1) == 8
    assert (peer.failure, peer.run(crash), peer.run(crash)) == ("", None, None)
    assert (peer.failure, calls) == ("RuntimeError: no kernel", [7])
    assert "in crash" in capsys.readouterr().err
    absent = Peer(lambda: importlib.import_module("no_such_package"))
    assert absent.run(lambda made: made) is None
    assert absent.failure == "ModuleNotFoundError: No module named 'no_such_package'"


def test_parts_without_text_are_not_measured(config, tmp_path):
    config.parts = "training translating"
    suite.benchmark(config, Workdir(tmp_path / "run"), tmp_path)
    text = (tmp_path / "run" / "models.md").read_text()
    assert "- training: no folder is named by translation.data.path" in text


def test_crash_of_a_part_is_an_error_after_the_page(config, tmp_path, monkeypatch):
    def crash(config):
        raise ImportError("no module")

    monkeypatch.setattr(decoding, "measure", crash)
    config.parts = "decoding"
    with pytest.raises(ExceptionGroup) as raised:  # the interpreter then exits with status 1
        suite.benchmark(config, Workdir(tmp_path / "run"), tmp_path)
    assert len(raised.value.exceptions) == 1
    text = (tmp_path / "run" / "models.md").read_text()
    assert "Failures:\n\n- decoding: ImportError: no module\n" in text


def test_batch_is_as_long_as_its_longest_sentences():
    batch = sentences.padded([EncodedPair([4, 5, 6], [7]), EncodedPair([8], [9, 10])])
    assert batch.source.tolist() == [[4, 5, 6, EOS], [8, EOS, PAD, PAD]]
    assert batch.target_inputs.tolist() == [[BOS, 7, PAD], [BOS, 9, 10]]
    assert batch.target_labels.tolist() == [[7, EOS, PAD], [9, 10, EOS]]
    assert sentences.padded([EncodedPair([8], [9, 10])]).source.tolist() == [[8, EOS]]


def test_batches_by_length():
    pairs = [EncodedPair([4] * length, [5]) for length in (7, 1, 3, 2)]
    found = sentences.by_length(pairs, tokens=12)
    assert [[pair.length for pair in batch] for batch in found] == [[2, 3, 4], [8]]


def test_page_compares_figures_with_goals():
    figures = [
        Figure("this ÷ that", 0.5, Timed(2.0, "10 outputs"), Timed(5.0)),
        Figure("more", 0.5, Timed(0.3), Timed(0.5)),
        Figure("peer", 0.5, Timed(0.3), Timed(None, "RuntimeError: no kernel")),
    ]
    record = {
        "origin": {"command": "python run.py", "commit": "abc1234", "cores": "2"},
        "figures": [figure.as_dict() for figure in figures],
        "absent": ["training: no text"],
        "failed": [],
    }
    page = suite.page(json.loads(as_json(record)))
    assert "| this ÷ that | 2 s (10 outputs) ÷ 5 s | 0.40 | 0.50 | met |" in page
    assert "| more | 300 ms ÷ 500 ms | 0.60 | 0.50 | **not met** |" in page
    assert "| peer | 300 ms ÷ RuntimeError: no kernel | - | 0.50 | not measured |" in page
    assert "Not measured:\n\n- training: no text" in page and "Failures" not in page


def test_one_part_runs_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(run.__file__.rpartition("/")[0])
    arguments = ["--config=configs/benchmark_models.py:tiny", "--config.parts=decoding"]
    where = [f"--workdir={tmp_path / 'run'}", f"--cache={tmp_path}"]
    assert run.main(["run.py", "--mode=benchmark", *arguments, *where]) == 0
    assert (tmp_path / "run" / "models.md").read_text() in capsys.readouterr().out


@pytest.mark.parametrize(
    "field, value, sentence",
    [
        ("parts", "decodin", "did you mean 'decoding'"),
        (
            "decoding.num_beams",
            500,
            "decoding.num_beams must lie in 1 to the vocabulary's 200, got 500",
        ),
        ("decoding.length", 20, "decoding.length must lie in 1 to decoding.model.max_length=8"),
        ("decoding.batches", (0,), "decoding.batches must be at least 1, got 0"),
        ("depth.layers", (1,), "depth.layers must be two numbers"),
        ("depth.seconds", 0.0, "depth.seconds must be a number above 0"),
        ("training.steps", 0, "training.steps must be at least 1, got 0"),
        (
            "translating.length",
            200,
            "translating.length must lie in 1 to translation.model.max_length=48, got 200",
        ),
        ("translating.workdir", "nowhere", "nowhere needs sentences: translation.data.path"),
        ("translating.seconds", 0.0, "translating.seconds must be a number above 0"),
        ("translation.data.path", "nowhere", "data.path=nowhere has no train.en and train.de"),
        ("rounds", 0, "rounds must be at least 1, got 0"),
        ("page", "nowhere/page.md", "has no folder to be written to"),
    ],
)
def test_usage_error(config, field, value, sentence):
    config.update_from_flattened_dict({field: value})
    with pytest.raises(UsageError, match=sentence):
        suite.check(config)

"""One step of training: deterministic, blind to padding, the same on devices; its learning rate."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.modules import LanguageModel, Layers
from configs import char_lm, toy_translation
from experiments import learner
from experiments.config import Config
from experiments.config.parts import DecoderModel, TrainPart
from experiments.data.packing import pad_batch
from experiments.data.pipeline import TextBatch
from experiments.data.tokenizers import CharacterTokenizer, EncodedPair, Tokenizers
from experiments.learner import optimizer, schedule
from experiments.sharding import compiled
from experiments.tasks.language_model import LanguageModeling
from experiments.tasks.translation import Translation

LETTERS = CharacterTokenizer.of(["abcdefghijk"])
PAIRS = [EncodedPair([3, 4, 5], [6, 7]), EncodedPair([5, 3], [4, 8, 9, 10])]
BATCH = pad_batch(PAIRS, 3, 7)  # with a row of padding; of one shape, since each is compiled
TOKENS = np.arange(24).reshape(3, 8) ** 2 % 7
COUNTED = np.arange(7) < np.array([[7], [2], [0]])  # labels: rows have different numbers of them
WINDOWS = TextBatch(TOKENS[:, :-1], TOKENS[:, 1:], COUNTED)


def small(config, dropout=0.0, mesh=(), **train):
    sizes = {"width": 8, "num_heads": 2, "hidden": 12, "positions": "sinusoidal"}
    config.model.update({**sizes, "dropout": dropout})
    config.mesh.update(dict(mesh))
    config.train.update({"warmup_steps": 0, "average": 1, "label_smoothing": 0.1, **train})
    return Config.read(config.to_dict())


def task(**mesh):
    config = small(toy_translation.get_config("tiny"), dropout=0.2, mesh=mesh)
    return Translation(config, Tokenizers(LETTERS, LETTERS)).learner


def language_model(microbatches=1, **changes):
    """Return a decoder alone, which compiles in half the time, without dropout."""
    config = char_lm.get_config("tiny")
    config.batch.microbatches = microbatches
    return LanguageModeling(small(config, **changes), Tokenizers(LETTERS, None)).learner


@pytest.fixture(scope="module")
def shared():
    with jax.numpy_dtype_promotion("standard"):
        return task()


@pytest.fixture(scope="module")
def at_once():
    with jax.numpy_dtype_promotion("standard"):
        return language_model()


close = partial(chex.assert_trees_all_close, rtol=1e-5, atol=1e-6)


def test_a_step_is_a_function_of_seed_and_step_and_learns_its_batch(shared):
    ours, first = shared.train_step(shared.initial_state(), BATCH)
    theirs, _ = shared.train_step(shared.initial_state(), BATCH)
    jax.tree.map(np.testing.assert_array_equal, ours.parameters, theirs.parameters)
    later = shared.initial_state()
    later = later._replace(step=jax.device_put(np.int32(1), later.step.sharding))
    _, dropped = shared.train_step(later, BATCH)
    assert first["loss"] != dropped["loss"] and first["tokens"] == 3 + 5
    for _ in range(20):
        ours, last = shared.train_step(ours, BATCH)
    assert int(ours.step) == 21 and last["nll"] < first["nll"] and first["gradient_norm"] > 0


def test_evaluation_ignores_padding_dropout_and_smoothing(shared):
    parameters = shared.initial_state().parameters
    tight = shared.evaluate_step(parameters, BATCH)
    loose = shared.evaluate_step(parameters, pad_batch(PAIRS, 5, 11))
    close(tight, loose)
    assert tight.tokens == 8 and tight.loss == tight.nll


@pytest.mark.parametrize(("parts", "mesh"), [(2, {"fsdp": 2}), (3, {"data": 1})])
def test_microbatches_add_up_to_the_batch(parts, mesh, at_once, monkeypatch):
    """Nothing is dropped, as each microbatch drops its own."""
    if "fsdp" in mesh:  # with a program for the first state, as in a run
        monkeypatch.setattr(learner, "compiled", compiled)
    in_parts = language_model(parts, mesh=mesh)
    state, plain = in_parts.initial_state(), at_once.initial_state()
    for _ in range(2):
        parameters = jax.tree.map(jnp.array, jax.device_get(state.parameters))
        plain, expected = at_once.train_step(plain._replace(parameters=parameters), WINDOWS)
        state, measured = in_parts.train_step(state, WINDOWS)
        close((state.optimizer, measured), (plain.optimizer, expected))
    assert in_parts.train_step._cache_size() == 1  # the first state is sharded as the next ones are


def test_two_devices_drop_the_same_and_share_the_state(shared):
    """Of three rows, which a row of padding follows."""
    sharded = task(fsdp=2)
    ours, theirs = sharded.initial_state(), shared.initial_state()
    close(ours.parameters, theirs.parameters)
    for _ in range(2):
        ours, found = sharded.train_step(ours, BATCH)
        theirs, expected = shared.train_step(theirs, BATCH)
        close(found, expected)
    held = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(ours.optimizer)]
    assert sum(held) < 0.55 * sum(leaf.nbytes for leaf in jax.tree.leaves(theirs.optimizer))
    close(sharded.losses(ours.parameters, [BATCH]), shared.losses(theirs.parameters, [BATCH]))


def test_half_the_precision_learns_in_whole_parameters(at_once):
    narrowed = language_model(dtype="bfloat16")
    jaxpr = str(jax.make_jaxpr(narrowed.train_step)(narrowed.abstract_state, WINDOWS))
    products = [line for line in jaxpr.splitlines() if "dot_general" in line]
    narrow = [line for line in products if "bf16" in line.split("=")[0]]
    assert len(narrow) > len(products) / 2  # attention and the loss stay wide
    state, ours = narrowed.train_step(narrowed.initial_state(), WINDOWS)
    _, theirs = at_once.train_step(at_once.initial_state(), WINDOWS)
    assert 0 < abs(ours["nll"] - theirs["nll"]) < 0.01 * theirs["nll"]
    assert {x.dtype for x in jax.tree.leaves(state.parameters)} == {jnp.dtype("float32")}


def test_the_training_step_lowers_for_every_platform(shared):
    """What cannot be lowered for an accelerator is found here, without one."""
    export = jax.export.export(shared.train_step, platforms=("cpu", "cuda", "tpu"))
    assert export(shared.abstract_state, BATCH).platforms == ("cpu", "cuda", "tpu")


@pytest.mark.parametrize(
    "name, expected",
    [
        ("constant", [0.5, 0.5]),
        ("linear", [0.25, 0.0]),
        ("cosine", [0.25, 0.0]),
        ("inverse_sqrt", [0.5 * (4 / 12) ** 0.5, 0.5 * (4 / 20) ** 0.5]),
    ],
)
def test_learning_rate_rises_in_a_line_and_falls(name, expected):
    """In the warm-up, half-way down, and at the end."""
    rate = schedule(TrainPart(schedule=name, learning_rate=0.5, warmup_steps=4, steps=20))
    found = [rate(jnp.int32(step)) for step in (0, 1, 2, 3, 4, 12, 20)]
    np.testing.assert_allclose(found, [0, 0.125, 0.25, 0.375, 0.5, *expected], atol=1e-6)


def test_gradients_are_clipped_before_adam():
    """Adam forgets the scale of a constant gradient, but not that one step was clipped."""

    def second_update(clip_norm):
        rates = {"schedule": "constant", "learning_rate": 1.0, "warmup_steps": 0}
        config = TrainPart(clip_norm=clip_norm, beta2=0.9, weight_decay=0.0, **rates)
        first, second, zero = (nnx.State({"w": nnx.Param(jnp.array([x]))}) for x in (1e2, 1.0, 0.0))
        transformation = optimizer(config, zero)
        _, state = transformation.update(first, transformation.init(zero), zero)
        return float(transformation.update(second, state, zero)[0]["w"][0])

    np.testing.assert_allclose(second_update(1.0), -1.0, rtol=1e-5)
    assert abs(second_update(1000.0) + 1.0) > 0.1


@pytest.fixture(scope="module")
def parameters():
    """Return ones for a model with parameters of every kind."""
    config = DecoderModel(width=8, num_heads=2, hidden=5, positions="learned", decoder_layers=1)
    make = partial(LanguageModel.from_config, config, vocab_size=7)
    abstract = nnx.state(jax.eval_shape(lambda: make(rngs=nnx.Rngs(0))))
    return jax.tree.map(lambda leaf: jnp.array(np.ones(leaf.shape, leaf.dtype)), abstract)


EVERY = {"kernel", "bias", "scale", "tokens", "table"}


@pytest.mark.parametrize("decay_all, changed", [(False, {"kernel"}), (True, EVERY)])
def test_without_a_gradient_only_decaying_parameters_change(parameters, decay_all, changed):
    config = TrainPart(warmup_steps=0, schedule="constant", decay_all=decay_all)
    transformation = optimizer(config, parameters)

    @jax.jit
    def update(parameters):
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        return transformation.update(zeros, transformation.init(parameters), parameters)[0]

    updates = update(parameters)
    found = {path[-1] for path, update in nnx.to_flat_state(updates) if np.any(update[...] != 0)}
    assert found == changed


def test_norms_of_flax_in_stacked_layers_do_not_decay():
    norms = nnx.state(Layers(lambda _, rngs: nnx.RMSNorm(4, rngs=rngs), 3, rngs=nnx.Rngs(0)))
    transformation = optimizer(TrainPart(warmup_steps=0), norms)
    zeros = jax.tree.map(jnp.zeros_like, norms)
    updates, _ = transformation.update(zeros, transformation.init(norms), norms)
    assert not any(np.any(update) for update in jax.tree.leaves(updates))

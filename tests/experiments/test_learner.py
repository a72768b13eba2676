"""One step of training: pure, deterministic, blind to padding, and the same program everywhere."""

from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import char_lm, toy_translation
from experiments import learner
from experiments.config import Config
from experiments.data.packing import pad_batch
from experiments.data.pipeline import TextBatch
from experiments.data.tokenizers import (
    SPACED,
    SPECIALS,
    CharacterTokenizer,
    EncodedPair,
    Tokenizers,
    WordTokenizer,
)
from experiments.sharding import compiled
from experiments.tasks.language_model import LanguageModeling
from experiments.tasks.translation import Translation

LETTERS = WordTokenizer((*SPECIALS, *"abcdefgh"), SPACED)
PAIRS = [EncodedPair([3, 4, 5], [6, 7]), EncodedPair([5, 3], [4, 8, 9, 10])]
BATCH = pad_batch(PAIRS, 3, 7)  # with a row of padding; of one shape, since each is compiled
TOKENS = np.arange(24).reshape(3, 8) ** 2 % 7
COUNTED = np.arange(7) < np.array([[7], [2], [0]])  # labels: rows have different numbers of them
WINDOWS = TextBatch(TOKENS[:, :-1], TOKENS[:, 1:], COUNTED)


SMALL = MappingProxyType({"width": 8, "num_heads": 2, "hidden": 12, "positions": "sinusoidal"})


def task(dropout=0.2, mesh=MappingProxyType({}), **changes):
    config = toy_translation.get_config("tiny")
    config.model.update({**SMALL, "dropout": dropout})
    config.mesh.update(mesh)
    config.train.update({"warmup_steps": 0, "average": 1, "label_smoothing": 0.1, **changes})
    return Translation(Config.read(config.to_dict()), Tokenizers(LETTERS, LETTERS)).learner


def language_model(microbatches=1, mesh=MappingProxyType({}), **changes):
    """Return a decoder alone, which compiles in half the time, without dropout."""
    config = char_lm.get_config("tiny")
    config.model.update({**SMALL, "dropout": 0.0})
    config.batch.microbatches = microbatches
    config.mesh.update(mesh)
    config.train.update({"warmup_steps": 0, "average": 1, "label_smoothing": 0.1, **changes})
    tokenizers = Tokenizers(CharacterTokenizer.of(["abcdefgh"]), None)
    return LanguageModeling(Config.read(config.to_dict()), tokenizers).learner


@pytest.fixture(scope="module")
def shared():
    with jax.numpy_dtype_promotion("standard"):
        return task()


@pytest.fixture(scope="module")
def at_once():
    with jax.numpy_dtype_promotion("standard"):
        return language_model()


def close(ours, theirs):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, theirs)


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
    close(tight._asdict(), loose._asdict())
    assert tight.tokens == 8 and tight.loss == tight.nll


@pytest.mark.parametrize(("parts", "mesh"), [(2, {"fsdp": 2}), (3, {"data": 1})])
def test_microbatches_add_up_to_the_batch(parts, mesh, at_once, monkeypatch):
    """Nothing is dropped, as each microbatch drops its own."""
    if "fsdp" in mesh:  # with a program for the first state, as in a run
        monkeypatch.setattr(learner, "compiled", compiled)
    in_parts = language_model(parts, mesh)
    state, plain = in_parts.initial_state(), at_once.initial_state()
    for _ in range(2):
        parameters = jax.tree.map(jnp.array, jax.device_get(state.parameters))
        plain, expected = at_once.train_step(plain._replace(parameters=parameters), WINDOWS)
        state, measured = in_parts.train_step(state, WINDOWS)
        close((state.optimizer, measured), (plain.optimizer, expected))
    assert in_parts.train_step._cache_size() == 1  # the first state is sharded as the next ones are


def test_two_devices_drop_the_same_and_share_the_state(shared):
    """Of three rows, which a row of padding follows; also with the batch in two parts."""
    sharded = task(mesh={"fsdp": 2})
    ours, theirs = sharded.initial_state(), shared.initial_state()
    close(ours.parameters, theirs.parameters)
    for _ in range(2):
        ours, found = sharded.train_step(ours, BATCH)
        theirs, expected = shared.train_step(theirs, BATCH)
        close(found, expected)
    held = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(ours.optimizer)]
    assert sum(held) < 0.55 * sum(leaf.nbytes for leaf in jax.tree.leaves(theirs.optimizer))
    evaluated = [
        each.losses(state.with_ema().parameters, [BATCH])
        for each, state in ((sharded, ours), (shared, theirs))
    ]
    close(*evaluated)


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
    exported = jax.export.export(shared.train_step, platforms=("cpu", "cuda", "tpu"))(
        shared.abstract_state, BATCH
    )
    assert exported.platforms == ("cpu", "cuda", "tpu")

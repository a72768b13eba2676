"""One step of training: pure, deterministic, blind to padding, and the same program everywhere."""

from types import MappingProxyType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from configs import char_lm, digits, toy_translation
from experiments.analysis.description import Description
from experiments.checkpoint import Checkpoints
from experiments.compilation import compiled
from experiments.config import Config
from experiments.config.train import MeshPart
from experiments.data.rows import EncodedPair, pad_batch
from experiments.data.text import TextBatch
from experiments.data.tokenizers import CharacterTokenizer, Tokenizers, WordTokenizer
from experiments.data.vocabulary import SPECIALS, Vocabulary
from experiments.data.words import SPACED
from experiments.losses import TokenLosses
from experiments.sharding import make_mesh, shardings
from experiments.tasks.classification import Classification
from experiments.tasks.language_model import LanguageModeling
from experiments.tasks.translation import Translation
from experiments.training import learner
from experiments.training.digest import digests
from experiments.training.session import fit_in
from experiments.training.step import TrainState, make_steps
from experiments.workdir import Workdir

LETTERS = WordTokenizer(Vocabulary((*SPECIALS, *"abcdefgh")), SPACED)
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


def language_task(microbatches=1, mesh=MappingProxyType({}), implementation=None, **changes):
    """Return a decoder alone, which compiles in half the time, without dropout."""
    config = char_lm.get_config("tiny")
    config.model.update({**SMALL, "dropout": 0.0, "implementation": implementation})
    config.batch.microbatches = microbatches
    config.mesh.update(mesh)
    config.train.update({"warmup_steps": 0, "average": 1, "label_smoothing": 0.1, **changes})
    tokenizers = Tokenizers(CharacterTokenizer.of(["abcdefgh"]), None)
    return LanguageModeling(Config.read(config.to_dict()), tokenizers)


def language_model(*arguments, **changes):
    return language_task(*arguments, **changes).learner


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


def test_a_step_learns_the_batch_it_sees(shared):
    state, first = shared.train_step(shared.initial_state(), BATCH)
    for _ in range(20):
        state, last = shared.train_step(state, BATCH)
    assert int(state.step) == 21
    assert last["nll"] < first["nll"]
    assert first["tokens"] == 3 + 5
    assert first["gradient_norm"] > 0


def test_the_same_seed_takes_the_same_step(shared):
    ours, theirs = (shared.train_step(shared.initial_state(), BATCH)[0] for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, ours.parameters, theirs.parameters)


def test_every_step_drops_something_else(shared):
    losses = set()
    for step in range(3):
        state = shared.initial_state()
        state = state._replace(step=jax.device_put(np.int32(step), state.step.sharding))
        losses.add(float(shared.train_step(state, BATCH)[1]["loss"]))
    assert len(losses) == 3


def test_padding_changes_neither_loss_nor_accuracy(shared):
    parameters = shared.initial_state().parameters
    tight = shared.evaluate_step(parameters, BATCH)
    loose = shared.evaluate_step(parameters, pad_batch(PAIRS, 5, 11))
    close(tight._asdict(), loose._asdict())
    assert tight.tokens == 8


def test_evaluation_has_no_dropout_and_no_smoothing(shared):
    parameters = shared.initial_state().parameters
    ours, again = (shared.evaluate_step(parameters, BATCH) for _ in range(2))
    assert ours.loss == again.loss == ours.nll


@pytest.mark.parametrize(("parts", "mesh"), [(2, {"fsdp": 2}), (3, {"data": 1})])
def test_parts_of_a_batch_add_up_to_it_and_the_average_moves(parts, mesh, at_once, monkeypatch):
    """Nothing is dropped, as each part drops its own.

    By hand: after steps 1 and 2 the average keeps 1/10 and 2/11 of itself, less than its decay.
    """
    if "fsdp" in mesh:  # with a program for the first state, as in a run
        monkeypatch.setattr(learner, "compiled", compiled)
    in_parts = language_model(parts, mesh, ema=0.9)
    plain, parted = at_once.initial_state(), in_parts.initial_state()
    average = parted.parameters
    for keep in (1 / 10, 2 / 11):
        average, before = jax.tree.map(np.array, (average, parted.parameters))
        plain = plain._replace(parameters=jax.tree.map(jnp.array, before))
        plain, expected = at_once.train_step(plain, WINDOWS)
        parted, found = in_parts.train_step(parted, WINDOWS)
        close((parted.optimizer, found), (plain.optimizer, expected))
        average = jax.tree.map(
            lambda new, old, keep=keep: (1 - keep) * np.asarray(new) + keep * old,
            parted.parameters,
            average,
        )
        close(parted.average, average)
    assert in_parts.train_step._cache_size() == 1  # the first state is sharded as the next ones are
    used = parted.to_use().parameters
    jax.tree.map(np.testing.assert_array_equal, used, parted.average)


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
    assert sum(held) < 0.51 * sum(leaf.nbytes for leaf in jax.tree.leaves(theirs.optimizer))
    evaluated = [
        each.losses(state.to_use().parameters, [BATCH])
        for each, state in ((sharded, ours), (shared, theirs))
    ]
    close(*evaluated)


def test_two_devices_share_a_vocabulary_of_odd_size(at_once, tmp_path, monkeypatch):
    """Its table and the moments have a row of zeros more, which no checkpoint and no model has.

    The program of the initial state, which other tests do not compile, is the same on both meshes.
    """
    monkeypatch.setattr(learner, "compiled", compiled)
    task = language_task(mesh={"tensor": 2}, implementation="reference")
    divided, words = task.learner, at_once.abstract_model.embedding.vocab_size
    divided.trace(WINDOWS)
    tables = [each for each in jax.tree.leaves(divided.padded_state) if words + 1 in each.shape]
    assert words % 2 and len(tables) == 3
    for table in tables:
        assert table.sharding.shard_shape(table.shape)[0] == (words + 1) / 2

    used = []
    run = SimpleNamespace(
        config=task.config,
        learner=divided,
        validate=lambda state: divided.losses(state.parameters, [WINDOWS]),
        sample=lambda state: used.append(state.parameters) or "text",
    )
    batches = [WINDOWS] * task.config.train.steps
    found = fit_in(Workdir(tmp_path), run, batches, {}).state
    again = fit_in(Workdir(tmp_path), run, batches, {}).state  # from its last checkpoint
    jax.tree.map(np.testing.assert_array_equal, again.parameters, found.parameters)
    expected = language_model().initial_state()
    close(divided.to_save(divided.initial_state()).parameters, expected.parameters)
    for _ in range(task.config.train.steps):
        expected, _ = at_once.train_step(expected, WINDOWS)
    for parameters in (found.parameters, used[-1]):
        close(parameters, expected.parameters)
    with Checkpoints(tmp_path / "checkpoints", read_only=True) as checkpoints:
        saved, _ = checkpoints.restore(at_once.abstract_state)  # on another mesh
    close(saved.optimizer, expected.optimizer)
    for table in jax.tree.leaves(divided.continued(found)):
        assert words + 1 not in table.shape or np.all(np.asarray(table)[words] == 0)


def test_flops_are_three_times_those_of_the_forward_pass(shared):
    source, target = Description.of(shared.abstract_model, context=7).costs
    tokens = 3 * 7  # padding included
    assert shared.flops(BATCH, 3) == tokens * (source.training_flops + target.training_flops)


def test_flops_count_no_rows_that_are_added_for_microbatches(at_once):
    in_parts, rows = language_model(microbatches=8), np.arange(10) % 3
    ten = jax.tree.map(lambda array: array[rows], WINDOWS)
    batch, num_rows = in_parts.batch_reader([ten])(0)
    assert len(batch.inputs) == 16 and num_rows == 10
    assert in_parts.flops(batch, num_rows) == at_once.flops(ten, 10)


def test_calls_of_a_compiled_method_are_steps_of_the_timeout(shared, monkeypatch):
    begun = []
    monkeypatch.setattr(learner, "step_begins", lambda: begun.append("step"))
    double = shared.apply(lambda model, array: 2 * array)
    parameters = shared.initial_state().parameters
    for _ in range(2):
        assert double(parameters, np.float32(3)) == 6
    assert begun == ["step", "step"]


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


def test_images_are_read_in_half_the_precision_too(tmp_path):
    config = digits.get_config("tiny")
    config.train.dtype = "bfloat16"
    task = Classification.prepare(Config.read(config.to_dict()), tmp_path)
    batch = task.batches("validation")[0]
    jaxpr = jax.make_jaxpr(task.learner.train_step)(task.learner.abstract_state, batch)
    products = [line for line in str(jaxpr).splitlines() if "dot_general" in line]
    narrow = [line for line in products if "bf16" in line.split("=")[0]]
    assert len(narrow) > len(products) / 2


def test_the_training_step_lowers_for_every_platform(shared):
    """What cannot be lowered for an accelerator is found here, without one."""
    exported = jax.export.export(shared.train_step, platforms=("cpu", "cuda", "tpu"))(
        shared.abstract_state, BATCH
    )
    assert exported.platforms == ("cpu", "cuda", "tpu")


def test_skipped_step_changes_the_numbers_of_the_step_alone():
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))

    def loss(model, batch, rng):
        del rng
        total = jnp.sum(model(batch))
        return TokenLosses(total, total, total, jnp.float32(1)), {}

    definition, parameters = nnx.split(model)
    adam = optax.adam(lambda _: jnp.float32(0.1))
    state = TrainState(
        step=jnp.int32(0),
        parameters=parameters,
        average=jax.tree.map(jnp.array, parameters),
        optimizer=adam.init(parameters),
        lr_scale=jnp.float32(1),
        rng=jax.random.key(0),
    )
    mesh = make_mesh(MeshPart(data=1))
    step, _ = make_steps(
        definition,
        loss,
        adam,
        lambda _: jnp.float32(0.1),
        mesh=mesh,
        parameter_shapes=parameters,
        state_shardings=shardings(state, mesh),
        decay=0.5,
        skips_nonfinite=True,
    )
    state, measured = step(state, np.ones((2, 3), np.float32))
    assert measured["skipped"] == 0 and np.isfinite(measured["loss"])
    before = digests(state)
    for value in (np.nan, np.inf):
        state, measured = step(state, np.full((2, 3), value, np.float32))
        assert measured["skipped"] == 1
        assert {name for name, digest in digests(state).items() if digest != before[name]} == {
            "step",
            "optimizer/1/count",
        }
    assert int(state.step) == int(state.optimizer[1].count) == 3  # the schedule follows the step

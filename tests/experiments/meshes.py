"""Training steps on meshes of eight devices, for `test_sharding.py`."""

import sys
from pathlib import Path

import jax
import numpy as np

from configs import toy_translation
from experiments.config import Config, load_config
from experiments.data.packing import PackedPairs, pack_batch
from experiments.data.tokenizers import SPACED, SPECIALS, Tokenizers, WordTokenizer
from experiments.registry import TASKS
from experiments.tasks.translation import Translation

SOURCE = WordTokenizer((*SPECIALS, *"abcdefghijklm"), SPACED)  # 16 words
TARGET = WordTokenizer((*SPECIALS, *"abcdefghijklmn"), SPACED)  # 17: is padded
STEPS, ROWS, LENGTH = 20, 12, 24  # eight devices do not divide twelve rows
MESHES = (
    {"data": 8},
    {"fsdp": 8},
    {"data": 2, "fsdp": 4},
    {"tensor": 2, "data": 4},
    {"fsdp": 2, "tensor": 4},
    {"data": 2, "fsdp": 2, "tensor": 2},
    {"data": 4, "sequence": 2},
)
# Relative scores, experts, recurrent cells, images, gaps and skip-grams.
TASK_CONFIGS = (
    "toy_translation_gqa",
    "char_lm_moe",
    "toy_translation_rnn",
    "digits",
    "masked_lm",
    "word_vectors",
    "packed_lm",
)


def learner(mesh, parts=1):
    """Return the training of a small Transformer with dropout."""
    config = toy_translation.get_config("tiny")
    config.model.update({"width": 32, "num_heads": 4, "hidden": 64, "attention_dropout": 0.1})
    config.mesh.update({"data": 0, **mesh})
    config.batch.microbatches = parts
    return Translation(Config.read(config.to_dict()), Tokenizers(SOURCE, TARGET)).learner


def batches():
    """Return packed pairs of random letters."""
    random = np.random.default_rng(0)

    def side():
        row = [random.integers(3, 16, size=random.integers(3, 7)) for _ in range(3)]
        return pack_batch(row * ROWS, [3] * ROWS, LENGTH)

    return [PackedPairs(side(), side()) for _ in range(STEPS)]


def share(state):
    """Return the share of the bytes of parameters and optimizer that the first device holds."""
    leaves = jax.tree.leaves((state.parameters, state.optimizer))
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)
    return held / sum(leaf.nbytes for leaf in leaves)


def trained(mesh, parts=1):
    """Return the loss of each step, that of a batch afterwards, and the share of a device."""
    training, losses = learner(mesh, parts), []
    state = training.initial_state()
    for batch in batches():
        state, measured = training.train_step(state, batch)
        losses.append(float(measured["loss"]))
    evaluated = training.losses(state.with_ema().parameters, batches()[:1])["loss"]
    return [*losses, evaluated], share(state)


def compare_tasks(cache):
    """Compare two steps and an evaluation of every kind of model with those of one device."""
    for name in sys.argv[3:] or TASK_CONFIGS:
        expected = None
        for mesh in ({"data": 1}, {"data": 2, "fsdp": 2, "tensor": 2}, {"data": 4, "sequence": 2}):
            config = load_config(f"{name}:tiny")
            config.mesh.update(mesh)
            task = TASKS[config.task].prepare(Config.read(config.to_dict()), cache)
            state, losses = task.learner.initial_state(), []
            for batch in (task.training_batches()[step] for step in range(2)):
                state, measured = task.learner.train_step(state, batch)
                losses.append(float(measured["loss"]))
            losses.append(task.learner.losses(state.parameters, [task.batches("test")[0]])["loss"])
            expected = expected or losses
            error = max(abs(np.array(losses) / expected - 1))
            print(name, mesh, error, flush=True)
            assert error < 1e-5, (name, mesh, error)


def compare_meshes():
    """Compare twenty steps on all meshes with those of one device."""
    for parts in (1, 3):
        expected, _ = trained({"data": 1}, parts)
        for mesh in MESHES if parts == 1 else MESHES[2:3]:
            losses, held = trained(mesh, parts)
            error = max(abs(np.array(losses) / expected - 1))
            print(mesh, parts, error, 8 * held, flush=True)
            assert error < 1e-6, (mesh, parts, error)
            whole = 0.2  # biases of hidden units are whole
            assert held <= (1 + whole) / mesh.get("fsdp", 1) / mesh.get("tensor", 1)


if __name__ == "__main__":
    if sys.argv[1] == "tasks":
        compare_tasks(Path(sys.argv[2]))
    else:
        compare_meshes()

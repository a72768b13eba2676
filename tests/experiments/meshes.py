"""Training steps on meshes of eight devices, for `test_sharding.py`."""

import sys
from functools import partial
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


def small(parts, mesh):
    """Return the training of a small Transformer with dropout, on packed pairs of letters."""
    config = toy_translation.get_config("tiny")
    config.model.update({"width": 32, "num_heads": 4, "hidden": 64, "attention_dropout": 0.1})
    config.mesh.update({"data": 0, **mesh})
    config.batch.microbatches = parts
    random = np.random.default_rng(0)

    def side():
        row = [random.integers(3, 16, size=random.integers(3, 7)) for _ in range(3)]
        return pack_batch(row * ROWS, [3] * ROWS, LENGTH)

    batches = [PackedPairs(side(), side()) for _ in range(STEPS)]
    task = Translation(Config.read(config.to_dict()), Tokenizers(SOURCE, TARGET))
    return task.learner, batches, batches[0]


def of_config(name, mesh):
    """Return the training of a config, two of its batches, and one that is measured."""
    config = load_config(f"{name}:tiny")
    config.mesh.update(mesh)
    task = TASKS[config.task].prepare(Config.read(config.to_dict()), Path(sys.argv[2]))
    batches = task.training_batches()
    return task.learner, [batches[0], batches[1]], task.batches("test")[0]


def compare(training, meshes, bound, whole=np.inf):
    """Compare the losses of steps, and of a batch afterwards, with those of one device.

    A device holds its share of the bytes of parameters and optimizer, and `whole` of that more.
    """
    expected = None
    for mesh in ({"data": 1}, *meshes):
        learner, batches, measured = training(mesh)
        state, losses = learner.initial_state(), []
        for batch in batches:
            state, metrics = learner.train_step(state, batch)
            losses.append(float(metrics["loss"]))
        losses.append(learner.losses(state.with_ema().parameters, [measured])["loss"])
        expected = expected or losses
        error = max(abs(np.array(losses) / expected - 1))
        leaves = jax.tree.leaves((state.parameters, state.optimizer))
        held = sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)
        held /= sum(leaf.nbytes for leaf in leaves)
        print(training.args, mesh, error, 8 * held, flush=True)
        assert error < bound, (training.args, mesh, error)
        assert held <= (1 + whole) / mesh.get("fsdp", 1) / mesh.get("tensor", 1)


if __name__ == "__main__":
    if sys.argv[1] == "tasks":
        for name in TASK_CONFIGS:
            compare(partial(of_config, name), MESHES[5:], 1e-5)
    else:  # biases of hidden units are whole
        compare(partial(small, 1), MESHES, 1e-6, whole=0.2)
        compare(partial(small, 3), MESHES[2:3], 1e-6, whole=0.2)

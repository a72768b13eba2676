"""Training steps on meshes of eight devices, for `test_sharding.py`."""

import sys
from pathlib import Path

import jax
import numpy as np

from experiments.config import Config
from experiments.config.files import load_config
from experiments.registry import TASKS

SMALL = {"width": 32, "num_heads": 4, "hidden": 64, "attention_dropout": 0.1}
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


def trained(cache, name, mesh, steps, parts=1, model=None):
    """Return losses of steps and of an evaluation, and the share of the state that a device holds.

    The share is of the bytes of parameters and optimizer.
    """
    config = load_config(f"{name}:tiny")
    config.model.update(model or {})
    config.mesh.update({"data": 0, **mesh})
    config.batch.microbatches = parts
    task = TASKS[config.task].prepare(Config.read(config.to_dict()), cache)
    state, losses, batches = task.learner.initial_state(), [], task.training_batches()
    for step in range(steps):
        state, measured = task.learner.train_step(state, batches[step])
        losses.append(float(measured["loss"]))
    parameters = state.with_ema().parameters
    losses.append(task.learner.losses(parameters, [task.batches("test")[0]])["loss"])
    leaves = jax.tree.leaves((state.parameters, state.optimizer))
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)
    return np.array(losses), held / sum(leaf.nbytes for leaf in leaves)


def compare(cache, name, meshes, steps, bound, **options):
    """Compare the losses on meshes with those of one device."""
    expected, _ = trained(cache, name, {"data": 1}, steps, **options)
    for mesh in meshes:
        losses, held = trained(cache, name, mesh, steps, **options)
        error = max(abs(losses / expected - 1))
        print(name, mesh, options, error, 8 * held, flush=True)
        assert error < bound, (name, mesh, error)
        if options:
            whole = 0.2  # biases of hidden units are whole
            assert held <= (1 + whole) / mesh.get("fsdp", 1) / mesh.get("tensor", 1)


if __name__ == "__main__":
    cache = Path(sys.argv[2])
    if sys.argv[1] == "tasks":
        for name in TASK_CONFIGS:
            compare(cache, name, MESHES[5:], 2, 1e-5)
    else:
        compare(cache, "toy_translation", MESHES, 20, 1e-6, model=SMALL)
        compare(cache, "toy_translation", MESHES[2:3], 20, 1e-6, model=SMALL, parts=3)

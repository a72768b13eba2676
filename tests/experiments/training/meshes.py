"""Training steps on meshes of eight devices, for `test_sharding.py`."""

import jax
import numpy as np

from configs import toy_translation
from experiments.config import Config
from experiments.data.rows import PackedPairs, pack_batch
from experiments.data.tokenizers import Tokenizers, WordTokenizer
from experiments.data.vocabulary import SPECIALS, Vocabulary
from experiments.data.words import SPACED
from experiments.tasks.translation import Translation

LETTERS = WordTokenizer(Vocabulary((*SPECIALS, *"abcdefghijklm")), SPACED)  # 16 words
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


def learner(mesh, parts=1):
    """Return the training of a small Transformer with dropout."""
    config = toy_translation.get_config("tiny")
    config.model.update({"width": 32, "num_heads": 4, "hidden": 64, "attention_dropout": 0.1})
    config.mesh.update({"data": 0, **mesh})
    config.batch.microbatches = parts
    return Translation(Config.read(config.to_dict()), Tokenizers(LETTERS, LETTERS)).learner


def batches():
    """Return packed pairs of random letters."""
    random = np.random.default_rng(0)

    def side():
        rows = [[random.integers(3, 16, size=random.integers(3, 7)) for _ in range(3)]] * ROWS
        return pack_batch(rows, LENGTH)

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
    evaluated = training.losses(state.to_use().parameters, batches()[:1])["loss"]
    return [*losses, evaluated], share(state)


def main():
    """Compare all meshes with one device."""
    for parts in (1, 3):
        expected, _ = trained({"data": 1}, parts)
        for mesh in MESHES if parts == 1 else MESHES[2:3]:
            losses, held = trained(mesh, parts)
            error = max(abs(np.array(losses) / expected - 1))
            print(mesh, parts, error, 8 * held, flush=True)
            assert error < 1e-6, (mesh, parts, error)
            assert held <= 1.01 / mesh.get("fsdp", 1) / mesh.get("tensor", 1) or "tensor" in mesh


if __name__ == "__main__":
    main()

"""Compare plans with compiled training steps, on as many simulated devices as a mesh has.

JAX_NUM_CPU_DEVICES=8 python -m tests.experiments.planning.compare
JAX_NUM_CPU_DEVICES=512 python -m tests.experiments.planning.compare gpt fsdp=64,tensor=8
"""

import math
import sys

import numpy as np

from configs import char_lm, masked_lm, toy_translation
from experiments.config import Config
from experiments.config.mesh import MeshPart
from experiments.config.train import TrainPart
from experiments.data.masking import MaskedBatch
from experiments.data.rows import Batch as PairBatch
from experiments.data.text import TextBatch
from experiments.data.tokenizers import Tokenizers, WordTokenizer
from experiments.data.vocabulary import SPECIALS, Vocabulary
from experiments.data.words import SPACED
from experiments.planning.communication import BatchShape, communicated
from experiments.planning.memory import flops, state_bytes
from experiments.planning.plan import abstract_mesh
from experiments.registry import TASKS
from experiments.training.sharding import shards_of
from tests.experiments.planning.compiled_text import product_flops, sent_by_kind

WORDS, LENGTH = 512, 32  # a device has more tokens than hidden units
LIMITS = {"FLOPs": 0.05, "arguments": 0.01}
LIMIT = 0.02  # of bytes of each kind of communication
SIZES = {"width": 64, "num_heads": 8, "hidden": 256, "max_length": LENGTH}
DEEP = {"encoder_layers": 3, "decoder_layers": 3, "remat": True}
LLAMA = {"norm": "rms", "gated": True, "activation": "silu", "use_bias": False, "tie": "none"}
# name -> config of the task, fields of the model. Layers are scanned.
MODELS = {
    "gpt": (char_lm, DEEP),
    "gpt with 509 words": (char_lm, DEEP | {"words": 509}),
    "gpt without remat": (char_lm, {"decoder_layers": 5, "dropout": 0.1, "remat": False}),
    "llama": (char_lm, DEEP | LLAMA | {"num_kv_heads": 4}),
    "post-norm": (char_lm, DEEP | {"norm_placement": "post", "positions": "learned"}),
    "bert": (masked_lm, DEEP | {"norm_placement": "post"}),
    "translation": (toy_translation, DEEP),
}
CASES = (
    ("gpt", "data=8"),
    ("gpt", "fsdp=8"),
    ("gpt", "tensor=8"),
    ("gpt", "sequence=8"),
    ("gpt", "data=2,fsdp=2,tensor=2"),
    ("gpt", "data=2,fsdp=2,sequence=2"),
    ("gpt", "fsdp=2,tensor=2,sequence=2"),
    ("gpt with 509 words", "fsdp=2,tensor=4"),
    ("gpt with 509 words", "data=2,tensor=4"),
    ("gpt without remat", "fsdp=4,tensor=2"),
    ("llama", "fsdp=4,tensor=2"),
    ("llama", "tensor=4,sequence=2"),
    ("post-norm", "data=2,fsdp=2,tensor=2"),
    ("bert", "data=2,tensor=4"),
    ("translation", "fsdp=4,tensor=2"),
    ("translation", "data=4,sequence=2"),
)


def learner(name, sizes):
    """Return the training of a model on a mesh."""
    recipe, fields = MODELS[name]
    config = recipe.get_config("tiny")
    fields = SIZES | fields
    config.model.update({name: fields[name] for name in fields if name in config.model})
    config.mesh.update({"data": 1, **sizes})
    if recipe is char_lm:
        config.batch.row_length = config.batch.tokens = LENGTH
    else:
        config.batch.bucket_lengths = (LENGTH,)
    gap = recipe is masked_lm  # one more word
    words = [
        chr(200 + number) for number in range(fields.get("words", WORDS) - len(SPECIALS) - gap)
    ]
    tokenizer = WordTokenizer(Vocabulary((*SPECIALS, *words)), SPACED)
    config = Config.read(config.to_dict())
    return TASKS[config.task](config, Tokenizers(tokenizer, tokenizer)).learner


def arrays(name, rows):
    """Return a batch."""
    ids, counted = np.ones((rows, LENGTH), np.int32), np.ones((rows, LENGTH), bool)
    lengths = np.full(rows, LENGTH, np.int32)
    if MODELS[name][0] is toy_translation:
        return PairBatch(ids, lengths, ids, ids)
    return (
        MaskedBatch(ids, lengths, ids, counted) if "bert" in name else TextBatch(ids, ids, counted)
    )


def compared(name, sizes):
    """Yield (name, number of the plan, number of the compiled step) for every number."""
    training, mesh = learner(name, sizes), abstract_mesh(MeshPart(**{"data": 1, **sizes}))
    batch = BatchShape(32 * max(8, shards_of("batch", mesh)), LENGTH)
    given = arrays(name, batch.rows)
    program = training.train_step.lower(training.padded_state, given).compile()
    text, model = program.as_text(), training.abstract_model
    sent = communicated(model, batch, mesh, reduce_scatter=False)
    for kind, counted in sent_by_kind(text).items():
        yield kind, sent[kind], counted
    yield "FLOPs", flops(model, batch, mesh), product_flops(text)
    state = sum(state_bytes(model, TrainPart(), mesh).values())
    others = 16 + sum(array.nbytes for array in given) // shards_of("batch", mesh)  # and scalars
    yield "arguments", state + others, program.memory_analysis().argument_size_in_bytes


def main(cases):
    """Print the numbers and their errors.

    Raises:
        AssertionError: an error above its limit.
    """
    for name, given in cases:
        sizes = {axis: int(size) for axis, size in (part.split("=") for part in given.split(","))}
        print(f"{name}, {given}", flush=True)
        for what, planned, counted in compared(name, sizes):
            if planned or counted:
                error = planned / counted - 1 if counted else math.inf
                print(f"  {what:20} {planned:14,.0f} {counted:14,.0f} {error:+9.3%}", flush=True)
                assert abs(error) < LIMITS.get(what, LIMIT), (name, given, what)


if __name__ == "__main__":
    main([sys.argv[1:]] if sys.argv[1:] else CASES)

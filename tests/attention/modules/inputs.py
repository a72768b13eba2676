"""Modules with drawn parameters, and one small Transformer whose sizes all differ."""

from collections.abc import Callable
from typing import TypeVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from attention import masks
from attention.modules import EncoderDecoder, TransformerConfig

Module = TypeVar("Module", bound=nnx.Module)

# The letters of the axis legend; V is the target vocabulary and v the source's.
DIMS = chex.Dimensions(B=3, S=7, T=5, N=6, K=3, H=4, D=14, F=13, V=17, v=19)
B, S, T = DIMS["BST"]
ENCODER_LAYERS, DECODER_LAYERS = 2, 3
LENGTHS = np.array([S, 2, 4])  # of the sources: one without padding, two with


def filled(build: Callable[[], Module], seed: int = 0) -> Module:
    """A module with every parameter drawn anew.

    As they are built, biases are 0 and norms 1: no test could tell whether anybody uses them.
    """
    random = np.random.default_rng(seed)

    def parameter(path: jax.tree_util.KeyPath, like: jax.ShapeDtypeStruct) -> Array:
        # A norm that is not near 1 would flatten what the next layer could tell apart.
        centre = 1 if ".scale" in jax.tree_util.keystr(path) else 0
        return jnp.asarray(random.normal(centre, 0.3, like.shape), like.dtype)

    return jax.tree_util.tree_map_with_path(parameter, jax.eval_shape(build))


def small_config(**changes: object) -> TransformerConfig:
    """A Transformer that compiles in a second."""
    sizes = {
        "width": DIMS["D"][0],
        "num_heads": DIMS["N"][0],
        "num_kv_heads": DIMS["K"][0],
        "head_width": DIMS["H"][0],
        "hidden": DIMS["F"][0],
        "max_length": 23,
        "encoder_layers": ENCODER_LAYERS,
        "decoder_layers": DECODER_LAYERS,
    }
    return TransformerConfig(**(sizes | changes))


def small_translator(seed: int = 0, **changes: object) -> EncoderDecoder:
    """An `EncoderDecoder` of drawn parameters."""
    config = small_config(**changes)
    (source_vocab_size,) = DIMS["V" if config.tie == "all" else "v"]
    return filled(
        lambda: EncoderDecoder(
            config,
            source_vocab_size=source_vocab_size,
            target_vocab_size=DIMS["V"][0],
            rngs=nnx.Rngs(0),
        ),
        seed,
    )


def tokens(*shape: int, seed: int = 0) -> Array:
    """Ids that both vocabularies know."""
    return jnp.asarray(np.random.default_rng(seed).integers(DIMS["V"][0], size=shape), jnp.int32)


@jax.jit
def translate(
    model: EncoderDecoder,
    source: Array,
    target: Array,
    lengths: Array,
    key: Array | None = None,
) -> Array:
    """Logits `[B, T, V]` for sources of these lengths."""
    mask = masks.lengths(lengths)
    return model(source, target, source_mask=mask, memory_mask=mask, key=key)

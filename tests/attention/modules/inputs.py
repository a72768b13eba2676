"""Modules with random parameters, and a small Transformer whose sizes all differ."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import chex
import jax
import numpy as np
from flax import nnx
from jax import Array

from attention import masks
from attention.modules import (
    Classifier,
    Embedding,
    EncoderDecoder,
    LanguageModel,
    MaskedLanguageModel,
    TransformerConfig,
)
from attention.modules.recurrent import RecurrentEncoderDecoder
from tests.attention.primitives.inputs import jitted

Module = TypeVar("Module", bound=nnx.Module)

# The letters of DESIGN, section 3; V is the target vocabulary and v that of the source.
DIMS = chex.Dimensions(B=3, S=7, T=5, N=6, K=3, H=4, D=14, F=13, V=17, v=19)
B, S, T = DIMS["BST"]
ENCODER_LAYERS, DECODER_LAYERS = 2, 3
LENGTHS = np.array([S, 2, 4])  # of the sources: one without padding, two with


def filled(build: Callable[[], Module], seed: int = 0) -> Module:
    """Return a module with random parameters.

    Initial biases are 0 and initial norms are 1, so no test could detect whether they are used.
    """
    return fill(jax.eval_shape(build), seed)


def fill(shapes: Module, seed: int = 0) -> Module:
    """Return a module with random parameters of these shapes."""
    random = np.random.default_rng(seed)

    def parameter(path: jax.tree_util.KeyPath, like: jax.ShapeDtypeStruct) -> Array:
        # A norm whose scale is not near 1 would hide what the next layer depends on.
        centre = 1 if ".scale" in jax.tree_util.keystr(path) else 0
        # NumPy converts the dtype: to convert it on the device compiles a program for each shape.
        return jax.device_put(random.normal(centre, 0.3, like.shape).astype(like.dtype))

    return jax.tree_util.tree_map_with_path(parameter, shapes)


@functools.cache
def shapes_of(cls: type[Module], config: TransformerConfig, **sizes: int) -> Module:
    """Return a module of shapes; to trace its initialization takes longer than to fill it."""
    return jax.eval_shape(lambda: cls.from_config(config, **sizes, rngs=nnx.Rngs(0)))


def small_config(**changes: object) -> TransformerConfig:
    """Return the config of a Transformer that compiles in a second."""
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


def language_model(seed: int = 0, **changes: object) -> LanguageModel:
    """Return a `LanguageModel` with random parameters."""
    (vocab_size,) = DIMS["V"]
    return fill(shapes_of(LanguageModel, small_config(**changes), vocab_size=vocab_size), seed)


def small_translator(seed: int = 0, **changes: object) -> EncoderDecoder:
    """Return an `EncoderDecoder` with random parameters."""
    config = small_config(**changes)
    source, target = DIMS["V" if config.tie in ("all", "embeddings") else "v"] + DIMS["V"]
    sizes = {"source_vocab_size": source, "target_vocab_size": target}
    return fill(shapes_of(EncoderDecoder, config, **sizes), seed)


def masked_language_model(**changes: object) -> MaskedLanguageModel:
    """Return a `MaskedLanguageModel` with random parameters."""
    (vocab_size,) = DIMS["V"]
    return fill(shapes_of(MaskedLanguageModel, small_config(**changes), vocab_size=vocab_size))


def classifier(
    pooling: object = "mean", make_embedding: object = None, **changes: object
) -> Classifier:
    """Return a `Classifier` of 5 classes, of tokens by default, with random parameters."""
    config = small_config(**changes)

    def build() -> Classifier:
        rngs = nnx.Rngs(0)
        if make_embedding is None:
            embedding = Embedding.from_config(DIMS["V"][0], config, rngs=rngs)
        else:
            embedding = make_embedding(config, rngs)
        return Classifier.from_config(config, embedding, num_classes=5, pooling=pooling, rngs=rngs)

    return filled(build)


def tokens(*shape: int, seed: int = 0) -> np.ndarray:
    """Return random ids below both vocabulary sizes."""
    return np.random.default_rng(seed).integers(DIMS["V"][0], size=shape, dtype=np.int32)


def double(parameter: nnx.Param) -> np.ndarray:
    """Return the value of a parameter in float64."""
    return np.asarray(parameter[...], np.float64)


def project(layer: Any, inputs: np.ndarray, num_axes: int = 1) -> np.ndarray:
    """Multiply the last axes of the inputs with the kernel and add the bias, in float64."""
    product = np.tensordot(np.asarray(inputs, np.float64), double(layer.kernel), num_axes)
    return product if layer.bias is None else product + double(layer.bias)


def normalize(norm: Any, inputs: np.ndarray) -> np.ndarray:
    """Apply a layer norm, or an RMS norm (without a bias), in float64."""
    inputs = np.asarray(inputs, np.float64)
    if norm.bias is not None:
        inputs = inputs - inputs.mean(-1, keepdims=True)
    normal = inputs / np.sqrt((inputs**2).mean(-1, keepdims=True) + norm.epsilon)
    normal = normal * double(norm.scale)
    return normal if norm.bias is None else normal + double(norm.bias)


def assert_close(ours: np.ndarray, theirs: np.ndarray, tolerance: float = 1e-4) -> None:
    """Compare with equal relative and absolute tolerances."""
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@jitted
def call(module: Callable[..., Any], *inputs: object, **options: object) -> Any:
    """Call a module in one program: each of its operations would be compiled alone."""
    return module(*inputs, **options)


def logits_of(
    model: EncoderDecoder | RecurrentEncoderDecoder,
    source: Array,
    target: Array,
    lengths: Array,
    rng: Array | None = None,
) -> Array:
    """Return logits `[B, T, V]` for sources of these lengths."""
    mask = masks.lengths(lengths)
    return model(source, target, source_mask=mask, encoder_mask=mask, rng=rng).logits


translate = jitted(logits_of)

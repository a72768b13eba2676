"""Transformer blocks, stacks and the encoder-decoder: values, visibility and parameters."""

import functools
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import masks
from attention.modules import Context, Decoder, Encoder, EncoderDecoder, transformer_block
from tests.attention.modules.inputs import (
    DIMS,
    LENGTHS,
    B,
    S,
    T,
    assert_close,
    call,
    filled,
    normalize,
    small_config,
    small_translator,
    tokens,
    translate,
)
from tests.attention.primitives.inputs import draw, jitted

D, N, V, v = DIMS["DNVv"]
SOURCE, TARGET = tokens(B, S, seed=1), tokens(B, T, seed=2)
INPUTS, ENCODER_OUTPUT = draw((B, T, D), (B, S, D))
SOURCE_MASK = masks.lengths(LENGTHS)
# Two models that between them choose every option.
PRE = {"norm_placement": "pre", "activation": "silu", "gated": True, "positions": "learned"}
PRE |= {"tie": "none", "output_bias": True}
POST = {"norm_placement": "post", "activation": "relu", "positions": "sinusoidal", "tie": "all"}
CROSS = Context(encoder_output=ENCODER_OUTPUT, encoder_mask=SOURCE_MASK)

small_translator = functools.cache(small_translator)


def stack(cls, **changes):
    return filled(lambda: cls.from_config(small_config(**changes), rngs=nnx.Rngs(0)))


def run(module, inputs=INPUTS, context=CROSS):
    return call(module, inputs, context=context)


def test_norms_before_and_after_a_sublayer():
    config = small_config(norm_placement="both")
    residual = filled(lambda: transformer_block(config, cross=False, rngs=nnx.Rngs(0))).feed_forward
    added = call(residual.sublayer, normalize(residual.norm, INPUTS))
    ours = run(residual, context=Context()).features
    assert_close(ours, INPUTS + normalize(residual.output_norm, added))


@pytest.mark.parametrize("layers", [0, 3])
def test_a_decoder_is_its_layers_and_their_norm(layers):
    decoder = stack(Decoder, decoder_layers=layers)
    assert len(decoder.layers.blocks) == (layers > 0)  # the program does not grow with the depth
    output = run(decoder, context=replace(CROSS, returning=("hidden_states",)))
    assert_close(output.features, normalize(decoder.norm, output.hidden_states[-1]))


@pytest.mark.parametrize(
    "kind, options, given, sentence",
    [
        (Decoder, {}, {}, "layer 0: cross-attention needs an encoder_output"),
        (Decoder, {"cross": False}, {"encoder_output": 1}, "Decoder with cross=False takes no"),
        (Decoder, {"cross": False}, {"encoder_mask": 1}, "Decoder with cross=False takes no"),
        (Encoder, {}, {"encoder_output": 1}, "Encoder with cross=False takes no"),
    ],
)
def test_no_encoder_output_and_no_cross_attention_is_ignored(kind, options, given, sentence):
    stack = jax.eval_shape(lambda: kind.from_config(small_config(), **options, rngs=nnx.Rngs(0)))
    given = {name: getattr(CROSS, name) for name in given}
    with pytest.raises(ValueError, match=sentence):
        jax.eval_shape(lambda m: m(INPUTS, context=Context(**given)), stack)


COLUMNS = np.arange(T) < np.array([3, 5, 1])[:, None, None]  # [B, 1, T]
MASKS = {
    "mask": masks.lengths([3, 5, 1]),
    "array": np.broadcast_to(COLUMNS, (B, T, T))[:, None],
    "row": COLUMNS[:, None],
    "heads": np.broadcast_to(COLUMNS[:, None], (B, N, T, T)),
}


def test_a_mask_is_added_to_the_causal_one():
    decoder = stack(Decoder, decoder_layers=1)

    def decode(mask):
        return run(decoder, context=Context(mask=mask, encoder_output=ENCODER_OUTPUT)).features

    ours = {name: decode(mask) for name, mask in MASKS.items()}
    ours["square"] = decode(np.tri(T, k=1, dtype=bool))
    decoder.causal = False
    expected = decode(masks.causal() & MASKS["mask"])
    for name in MASKS:
        assert_close(ours[name], expected)
    assert_close(ours["square"], decode(masks.causal()))


def test_source_lengths_are_added_to_a_bool_array():
    model, even = small_translator(), masks.from_function(lambda query, key: key % 2 == 0)
    array = np.broadcast_to(np.arange(S) % 2 == 0, (B, N, 1, S))
    ours, expected = (
        call(model, SOURCE, TARGET, encoder_mask=mask, source_lengths=LENGTHS).logits
        for mask in (array, even)
    )
    assert_close(ours, expected)


@jitted
@jax.value_and_grad
def loss_and_gradient(model, lengths):
    logits = translate(model, SOURCE, TARGET, lengths)
    scores = jnp.take_along_axis(jax.nn.log_softmax(logits), TARGET[..., None], axis=-1)
    return -scores.mean()


@pytest.mark.parametrize("changes", [PRE, POST], ids=["pre", "post"])
def test_gradients(changes):
    """Every parameter of every layer has one, and an empty source has finite ones."""
    model = small_translator(**changes)
    chex.assert_tree_all_finite(loss_and_gradient(model, np.array([S, 0, 0])))
    _, gradient = loss_and_gradient(model, LENGTHS)
    for path, slopes in jax.tree_util.tree_leaves_with_path(gradient):
        name = jax.tree_util.keystr(path)
        for layer in slopes if ".blocks" in name else slopes[None]:
            steepest = np.abs(layer).max()
            # The bias of keys adds the same number to every score of a query: softmax ignores it.
            assert (steepest < 1e-7) if ".key.bias" in name else (steepest > 1e-5), name


@pytest.mark.parametrize(
    "tie, saved", [("output", V * D), ("embeddings", v * D), ("all", (V + v) * D)]
)
def test_tied_tables(tie, saved):
    models = [small_translator(tie=each, output_bias=True) for each in ("none", tie)]  # one bias
    untied, tied = (sum(leaf.size for leaf in jax.tree.leaves(each)) for each in models)
    assert untied - tied == saved
    if tie in ("embeddings", "all"):
        model = small_translator(tie=tie, encoder_layers=0)
        encode = jitted(lambda model: model.encode(SOURCE).features)
        expected = jitted(lambda m: m.encoder(m.target_embedding(SOURCE)).features)(model)
        assert_close(encode(model), expected)
        sizes = {"source_vocab_size": 19, "target_vocab_size": 17}
        with pytest.raises(ValueError, match="got 19 source and 17 target words: use tie='output'"):
            EncoderDecoder.from_config(small_config(tie=tie), **sizes, rngs=nnx.Rngs(0))


class TestDropout:
    """Each sublayer of each layer has its own random key."""

    def test_encoder_decoder_and_both_embeddings_have_different_keys(self):
        # The same tokens on both sides, embedded by one table without any layer: what remains is
        # the dropout of the embeddings, and two equal keys would drop the same entries.
        changes = {"tie": "all", "norm_placement": "post", "encoder_layers": 0, "decoder_layers": 0}
        model, rng = small_translator(dropout=0.5, **changes), jax.random.key(0)
        output = call(model, TARGET, TARGET, rng=rng)
        lost = np.asarray(output.encoder.features == 0), np.asarray(output.features == 0)
        for each in (*lost, lost[0] ^ lost[1]):
            np.testing.assert_allclose(each.mean(), 0.5, atol=0.2)

    def test_every_sublayer_of_every_layer_drops_different_entries(self):
        # Each sublayer adds 1 and their sum is not normalised, so that it counts how many were
        # kept. Six independent sublayers have variance 6/4; two equal ones add 1/2.
        decoder = stack(Decoder, dropout=0.5, decoder_layers=2)
        decoder.norm = None
        decoder.layers = jax.tree.map(jnp.zeros_like, decoder.layers)
        for name in ("self_attention", "cross_attention", "feed_forward"):
            sublayer = getattr(decoder.layers.blocks[0], name).sublayer
            last = sublayer.down if name == "feed_forward" else sublayer.output
            last.bias[...] += 1
        inputs = jnp.zeros((50, T, D))
        context = Context(encoder_output=inputs, rng=jax.random.key(0))
        kept = np.asarray(run(decoder, inputs, context).features) / 2
        assert set(kept.ravel()) == set(range(7))
        np.testing.assert_allclose(kept.var(), 6 / 4, atol=0.2)
        assert (kept[0] != kept[1]).mean() > 0.5  # 0.77 by chance

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
from attention.modules import (
    Block,
    Context,
    Decoder,
    Encoder,
    EncoderDecoder,
    transformer_block,
)
from tests.attention.modules.inputs import (
    DIMS,
    LENGTHS,
    B,
    S,
    T,
    assert_close,
    assert_no_leaks_in_translations,
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
RETURNING = replace(CROSS, returning=("weights", "hidden_states"))

small_translator = functools.cache(small_translator)


def block(cross=True, **changes):
    config = small_config(**changes)
    return filled(lambda: transformer_block(config, cross=cross, rngs=nnx.Rngs(0)))


def stack(cls, seed=0, **changes):
    return filled(lambda: cls.from_config(small_config(**changes), rngs=nnx.Rngs(0)), seed)


def apply(module, inputs=INPUTS, context=CROSS):
    return module(inputs, context=context)


run = jitted(apply)


@pytest.mark.parametrize("placement", ["pre", "post", "both"])
def test_a_block_is_three_residual_sublayers(placement):
    module = block(norm_placement=placement)
    context = replace(CROSS, mask=masks.causal())
    expected = INPUTS
    for name in ("self_attention", "cross_attention", "feed_forward"):
        residual = getattr(module, name)
        given = expected if placement == "post" else normalize(residual.norm, expected)
        added = run(residual.sublayer, given, context)
        added = added if name == "feed_forward" else added.features
        if placement == "both":
            added = normalize(residual.output_norm, added)
        expected = expected + added
        if placement == "post":
            expected = normalize(residual.norm, expected)
    assert_close(run(module, context=context).features, expected)


class TestCrossAttention:
    """No encoder output and no cross-attention is ever ignored."""

    @pytest.mark.parametrize(
        "cross, given, sentence",
        [
            (True, {}, "layer 0: cross-attention needs an encoder_output"),
            (False, {"encoder_output": ENCODER_OUTPUT}, "Decoder with cross=False takes no"),
            (False, {"encoder_mask": SOURCE_MASK}, "Decoder with cross=False takes no"),
            (None, {"encoder_output": ENCODER_OUTPUT}, "Encoder with cross=False takes no"),
        ],
        ids=["no encoder output", "encoder output", "encoder mask", "encoder"],
    )
    def test_stacks_with_and_without(self, cross, given, sentence):
        kind, options = (Encoder, {}) if cross is None else (Decoder, {"cross": cross})
        build = functools.partial(kind.from_config, small_config(), **options)
        stack = jax.eval_shape(lambda: build(rngs=nnx.Rngs(0)))
        with pytest.raises(ValueError, match=sentence):
            jax.eval_shape(lambda m: m(INPUTS, context=Context(**given)), stack)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_a_decoder_is_its_blocks_one_by_one(placement):
    decoder = stack(Decoder, norm_placement=placement)
    assert decoder.layers.period == 1
    context = replace(RETURNING, mask=masks.causal())
    output = run(decoder, context=RETURNING)
    features = INPUTS
    assert_close(output.hidden_states[0], features)
    for index, alone in enumerate(decoder.layers.unstacked()):
        each = run(alone, features, context)
        features = each.features
        assert_close(output.hidden_states[index + 1], features)
        for name, results in each.attention.items():
            assert_close(output.attention[index][name]["weights"], results["weights"])
    assert (decoder.norm is None) == (placement == "post")  # "post" features are normalised already
    assert_close(
        output.features, features if placement == "post" else normalize(decoder.norm, features)
    )


def test_a_stack_without_layers_is_its_norm():
    encoder = stack(Encoder, encoder_layers=0)
    output = encoder(INPUTS, context=Context(returning=("weights", "hidden_states")))
    assert_close(output.features, normalize(encoder.norm, INPUTS))
    assert output.attention == ()
    assert len(output.hidden_states) == 1
    decoder = stack(Decoder, decoder_layers=0)
    rng = jax.random.key(0)
    assert_close(
        decoder(INPUTS, context=Context(rng=rng)).features, normalize(decoder.norm, INPUTS)
    )


def test_the_program_does_not_grow_with_the_depth():
    def lines(layers):
        lowered = jax.jit(apply).lower(stack(Decoder, decoder_layers=layers))
        return lowered.as_text().count("\n")

    assert lines(12) == lines(2) > 100


def test_sublayers_by_name_and_by_function():
    """The second layer of the encoder is a function of the user."""

    def shift(config, rngs):
        del config, rngs
        return lambda inputs: jnp.roll(inputs, 1, axis=-2)

    encoder = stack(Encoder, per_layer=[{}, {"mixer": shift, "feed_forward": shift}])
    before, after = encoder.layers.unstacked()
    assert isinstance(before, Block)
    features = run(after, context=Context()).features
    expected = INPUTS + jnp.roll(normalize(after.self_attention.norm, INPUTS), 1, axis=-2)
    expected += jnp.roll(normalize(after.feed_forward.norm, expected), 1, axis=-2)
    assert_close(features, expected)


class TestMasks:
    @pytest.mark.parametrize("kind", ["mask", "array", "batch of arrays", "row", "heads"])
    def test_a_mask_is_added_to_the_causal_one(self, kind):
        lengths = np.array([3, 5, 1])
        columns = np.arange(T) < lengths[:, None, None]
        mask, expected = {
            "mask": (masks.lengths(lengths), masks.lengths(lengths)),
            "array": (np.tri(T, k=1, dtype=bool), None),
            "batch of arrays": (
                np.broadcast_to(columns, (B, T, T))[:, None],
                masks.lengths(lengths),
            ),
            "row": (columns[:, None], masks.lengths(lengths)),
            "heads": (np.broadcast_to(columns[:, None], (B, N, T, T)), masks.lengths(lengths)),
        }[kind]
        decoder = stack(Decoder, decoder_layers=1)
        ours = run(decoder, context=Context(mask=mask, encoder_output=ENCODER_OUTPUT))
        decoder.causal = False
        expected = masks.causal() if expected is None else masks.causal() & expected
        context = Context(mask=expected, encoder_output=ENCODER_OUTPUT)
        assert_close(ours.features, run(decoder, context=context).features)

    def test_a_float_array_is_no_mask(self):
        decoder = stack(Decoder, decoder_layers=1)
        with pytest.raises(TypeError, match=r"pass score=scores.bias_array\(array\)"):
            apply(decoder, context=replace(CROSS, mask=np.zeros((T, T), np.float32)))

    @pytest.mark.parametrize("shape", [(B, 1, T, S), (B, N, 1, S)], ids=["batch", "heads"])
    def test_source_lengths_are_added_to_a_bool_array(self, shape):
        model, allowed = small_translator(), np.arange(S) % 2 == 0
        options = {"source_lengths": LENGTHS}
        array = np.broadcast_to(allowed, shape)
        ours = call(model, SOURCE, TARGET, encoder_mask=array, **options).logits
        mask = masks.from_function(lambda query, key: key % 2 == 0)
        assert_close(ours, call(model, SOURCE, TARGET, encoder_mask=mask, **options).logits)


class TestPadding:
    """Padding of the source, and tokens of the future, have no effect."""

    def test_logits_depend_on_valid_and_earlier_tokens_of_their_row_alone(self):
        assert_no_leaks_in_translations(small_translator())

    def test_number_of_padding_tokens(self):
        """With a mask of targets that is causal only because the decoder is."""
        longer = np.concatenate([SOURCE, tokens(B, 4, seed=3)], axis=1)
        given = {"source_lengths": LENGTHS, "target_mask": masks.window(T, T)}
        ours = jitted(lambda m: m(longer, TARGET, **given).logits)(small_translator())
        assert_close(ours, translate(small_translator(), SOURCE, TARGET, LENGTHS))

    def test_an_empty_source_gives_finite_logits_and_gradients(self):
        lengths = np.array([S, 0, 0])
        for changes in (PRE, POST):
            loss, gradient = loss_and_gradient(small_translator(**changes), lengths)
            assert np.isfinite(loss)
            chex.assert_tree_all_finite(nnx.split(gradient)[1])


@jitted
@jax.value_and_grad
def loss_and_gradient(model, lengths):
    logits = translate(model, SOURCE, TARGET, lengths)
    scores = jnp.take_along_axis(jax.nn.log_softmax(logits), TARGET[..., None], axis=-1)
    return -scores.mean()


class TestParameters:
    """Their number, which are shared, and that each has an effect."""

    @pytest.mark.parametrize(
        "tie, saved", [("output", V * D), ("embeddings", v * D), ("all", (V + v) * D)]
    )
    def test_each_tie_saves_a_table(self, tie, saved):
        untied, tied = (
            sum(leaf.size for leaf in jax.tree.leaves(small_translator(tie=each)))
            for each in ("none", tie)
        )
        assert untied - tied == saved

    @pytest.mark.parametrize("tie", ["none", "output", "embeddings", "all"])
    def test_a_tied_output_is_the_target_table(self, tie):
        model = small_translator(tie=tie, output_bias=True)
        if tie in ("output", "all"):
            kernel, bias = model.target_embedding.tokens[...].T, model.target_embedding.bias[...]
        else:
            kernel, bias = model.output.kernel[...], model.output.bias[...]
        expected = INPUTS @ np.asarray(kernel) + np.asarray(bias)
        assert_close(model.logits(INPUTS), expected)

    @pytest.mark.parametrize("tie", ["embeddings", "all"])
    def test_one_table_embeds_source_and_target(self, tie):
        model = small_translator(tie=tie, encoder_layers=0)
        assert model.source_embedding.tokens is None
        encode = jitted(lambda model: model.encode(SOURCE).features)
        expected = jitted(lambda m: m.encoder(m.target_embedding(SOURCE)).features)(model)
        assert_close(encode(model), expected)
        model.source_embedding = None
        assert_close(encode(model), expected)

    @pytest.mark.parametrize("tie", ["embeddings", "all"])
    def test_vocabularies_of_different_size_cannot_share_a_table(self, tie):
        sizes = {"source_vocab_size": 19, "target_vocab_size": 17}
        with pytest.raises(ValueError, match="got 19 source and 17 target words: use tie='output'"):
            EncoderDecoder.from_config(small_config(tie=tie), **sizes, rngs=nnx.Rngs(0))

    @pytest.mark.parametrize("changes", [PRE, POST], ids=["pre", "post"])
    def test_every_parameter_of_every_layer_has_a_gradient(self, changes):
        model = small_translator(**changes)
        _, gradient = loss_and_gradient(model, LENGTHS)
        for path, slopes in jax.tree_util.tree_leaves_with_path(gradient):
            name = jax.tree_util.keystr(path)
            layers = slopes if ".blocks" in name else slopes[None]
            for layer in layers:
                steepest = np.abs(layer).max()
                if ".key.bias" in name:
                    # It adds the same number to every score of a query, which softmax ignores.
                    assert steepest < 1e-7, name
                else:
                    assert steepest > 1e-5, name


class TestReturning:
    """Weights and hidden states of every layer, which never change the output."""

    def test_encoder_and_decoder(self):
        model = small_translator(encoder_layers=1, decoder_layers=1)
        # Without its optimisations, XLA rounds a program that returns more in another way.
        as_usual = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}

        @functools.partial(jitted, static_argnums=0, compiler_options=as_usual)
        def score(returning):
            return model(SOURCE, TARGET, source_lengths=LENGTHS, returning=returning)

        plain = score(())
        output = score(("weights", "logsumexp", "hidden_states"))
        assert plain.attention == ({},)
        assert plain.hidden_states == ()
        np.testing.assert_array_equal(output.logits, plain.logits)
        padding = np.arange(S) >= LENGTHS[:, None, None, None]
        (decoder,), (encoder,) = output.attention, output.encoder.attention
        for results in (encoder["self_attention"], decoder["cross_attention"]):
            assert not np.where(padding, results["weights"], 0).any()
        for results in (*encoder.values(), *decoder.values()):
            assert_close(results["weights"].sum(-1), np.ones(results["logsumexp"].shape))


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
        ones = {".output.bias.value": 1, ".down.bias.value": 1}
        decoder.layers = constant(decoder.layers, ones)
        inputs = jnp.zeros((50, T, D))
        context = Context(encoder_output=inputs, rng=jax.random.key(0))
        kept = np.asarray(run(decoder, inputs, context).features) / 2
        assert set(kept.ravel()) == set(range(7))
        np.testing.assert_allclose(kept.var(), 6 / 4, atol=0.2)
        assert (kept[0] != kept[1]).mean() > 0.5  # 0.77 by chance

    def test_self_and_cross_attention_drop_different_pairs(self):
        # Each adds the share of its pairs that were kept, a mean over N heads and T keys of 0 or 2,
        # which has the variance 1 / (N * T). Two equal ones add up to 4 of these.
        values = {".value.bias.value": 1, ".output.kernel.value": 1 / (N * DIMS["H"][0])}
        module = constant(block(attention_dropout=0.5), values)
        inputs = jnp.zeros((200, T, D))
        context = Context(encoder_output=inputs, rng=jax.random.key(0))
        features = run(module, inputs, context).features
        np.testing.assert_allclose(np.var(features[..., 0]) * N * T, 2, rtol=0.25)


def constant(module, values):
    """Set parameters by the end of their path to a number, and the others to 0."""

    def fill(path, leaf):
        name = jax.tree_util.keystr(path)
        return jnp.full_like(leaf, next((values[end] for end in values if name.endswith(end)), 0))

    return jax.tree_util.tree_map_with_path(fill, module)

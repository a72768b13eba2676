"""Blocks, stacks and the encoder-decoder: what they compute, what they may see, what they hold."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import masks
from attention.modules import Block, Decoder, Encoder, EncoderDecoder
from tests.attention.modules.inputs import (
    DECODER_LAYERS,
    DIMS,
    ENCODER_LAYERS,
    LENGTHS,
    B,
    S,
    T,
    filled,
    small_config,
    small_translator,
    tokens,
    translate,
)
from tests.attention.primitives.inputs import draw

D, N, V = DIMS["DNV"]
SOURCE, TARGET = tokens(B, S, seed=1), tokens(B, T, seed=2)
INPUTS, MEMORY = draw((B, T, D), (B, S, D))
SOURCE_MASK = masks.lengths(LENGTHS)
NORMS = ("pre", "post")
# Two models that between them choose everything there is to choose.
PRE = {"norm": "pre", "activation": "gated", "positions": "learned", "tie": "none"}
POST = {"norm": "post", "activation": "relu", "positions": "sinusoidal", "tie": "all"}

small_translator = functools.cache(small_translator)


def block(cross=True, **changes):
    return filled(lambda: Block(small_config(**changes), cross=cross, rngs=nnx.Rngs(0)))


def stack(cls, seed=0, **changes):
    return filled(lambda: cls(small_config(**changes), rngs=nnx.Rngs(0)), seed)


def layer_norm(module, inputs):
    inputs = np.asarray(inputs, np.float64)
    centred = inputs - inputs.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    return normal * np.asarray(module.scale[...]) + np.asarray(module.bias[...])


def assert_close(ours, theirs, tolerance=1e-4):
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


class ShapeTest(chex.TestCase):
    """Named axes in, named axes out, with and without jit."""

    @chex.variants(with_jit=True, without_jit=True)
    def test_encoder_decoder(self):
        model = small_translator()

        @self.variant
        def run(source, target):
            return model(source, target, source_mask=SOURCE_MASK, memory_mask=SOURCE_MASK)

        logits = run(SOURCE, TARGET)
        chex.assert_shape(logits, DIMS["BTV"])
        assert_close(logits, translate(model, SOURCE, TARGET, LENGTHS))

    def test_leading_axes_are_kept(self):
        model = small_translator()
        for batch in ((), (2,), (3, 2)):
            run = functools.partial(model, source_mask=None, memory_mask=None)
            logits = jax.eval_shape(run, tokens(*batch, S), tokens(*batch, T))
            chex.assert_shape(logits, (*batch, T, V))
            memory = jax.eval_shape(functools.partial(model.encode, mask=None), tokens(*batch, S))
            chex.assert_shape(memory, (*batch, S, D))


@pytest.mark.parametrize("norm", NORMS)
def test_a_block_is_three_residual_sublayers(norm):
    module = block(norm=norm)
    mask = masks.causal()

    def residual(layer_norm_module, sublayer, inputs):
        if norm == "pre":
            normal = jnp.asarray(layer_norm(layer_norm_module, inputs), jnp.float32)
            return inputs + sublayer(normal)
        return jnp.asarray(layer_norm(layer_norm_module, inputs + sublayer(inputs)), jnp.float32)

    def to_itself(x):
        return module.self_attention(x, mask=mask)[0]

    def to_memory(x):
        return module.cross_attention(x, MEMORY, mask=SOURCE_MASK)[0]

    expected = residual(module.self_norm, to_itself, INPUTS)
    expected = residual(module.cross_norm, to_memory, expected)
    expected = residual(module.feed_forward_norm, module.feed_forward, expected)
    outputs, _ = jax.jit(module)(INPUTS, MEMORY, mask=mask, memory_mask=SOURCE_MASK)
    assert_close(outputs, expected)


@pytest.mark.parametrize(
    "cross, given, sentence",
    [
        (True, {}, "cross=True attends to a memory, and none is given"),
        (False, {"memory": MEMORY}, "cross=False takes neither memory nor memory_mask"),
        (False, {"memory_mask": SOURCE_MASK}, "cross=False takes neither memory nor memory_mask"),
    ],
    ids=["no memory", "unread memory", "unread mask"],
)
def test_a_decoder_drops_no_argument_silently(cross, given, sentence):
    decoder = jax.eval_shape(lambda: Decoder(small_config(), cross=cross, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match=sentence):
        decoder(INPUTS, **given)


@pytest.mark.parametrize("norm", NORMS)
def test_a_scanned_stack_is_its_blocks_one_by_one(norm):
    decoder = stack(Decoder, norm=norm)
    expected, expected_weights = INPUTS, {"self": [], "cross": []}
    run = jax.jit(Block.__call__, static_argnames="returning")
    for layer in range(DECODER_LAYERS):
        alone = jax.tree.map(lambda parameter, layer=layer: parameter[layer], decoder.layers)
        expected, extras = run(
            alone,
            expected,
            MEMORY,
            mask=masks.causal(),
            memory_mask=SOURCE_MASK,
            returning=("weights",),
        )
        for name, weights in expected_weights.items():
            weights.append(extras[name]["weights"])
    if norm == "pre":
        expected = layer_norm(decoder.norm, expected)
    outputs, extras = jax.jit(functools.partial(decoder, returning=("weights",)))(
        INPUTS, MEMORY, memory_mask=SOURCE_MASK
    )
    assert_close(outputs, expected)
    for name, weights in expected_weights.items():
        assert_close(extras[name]["weights"], np.stack(weights))


@pytest.mark.parametrize("norm", NORMS)
def test_what_leaves_a_stack_is_normalised_once(norm):
    encoder = stack(Encoder, norm=norm)
    assert (encoder.norm is None) == (norm == "post")
    last = encoder.norm
    if norm == "post":
        last = jax.tree.map(lambda parameter: parameter[-1], encoder.layers.feed_forward_norm)
    outputs, _ = jax.jit(Encoder.__call__)(encoder, INPUTS, mask=None)
    normal = (outputs - last.bias[...][None, None]) / last.scale[...][None, None]
    assert_close(normal.mean(-1), np.zeros((B, T)), 1e-3)
    assert_close(normal.var(-1), np.ones((B, T)), 1e-3)


def test_a_stack_without_layers_is_its_norm():
    encoder = stack(Encoder, encoder_layers=0)
    outputs, extras = encoder(INPUTS, mask=None, returning=("weights",))
    assert_close(outputs, layer_norm(encoder.norm, INPUTS))
    assert extras["self"]["weights"].shape == (0, B, N, T, T)


def test_layers_start_as_different_as_if_built_one_by_one():
    encoder = Encoder(small_config(width=64), rngs=nnx.Rngs(0))
    first, second = encoder.layers.feed_forward.widen.kernel[...]
    np.testing.assert_allclose(np.var([first, second]) * 64, 1, rtol=0.2)
    assert abs(np.corrcoef(np.ravel(first), np.ravel(second))[0, 1]) < 0.2


def test_the_program_does_not_grow_with_the_depth():
    def lines(layers):
        model = small_translator(encoder_layers=layers, decoder_layers=layers)
        lowered = translate.lower(model, SOURCE, TARGET, LENGTHS)
        return lowered.as_text().count("\n")

    assert lines(12) == lines(2) > 100


class TestCausality:
    """No score depends on a token that comes later."""

    def test_a_later_target_token_never_changes_an_earlier_logit(self):
        model = small_translator()
        before = translate(model, SOURCE, TARGET, LENGTHS)
        for changed in range(T):
            other = TARGET.at[:, changed].set((TARGET[:, changed] + 1) % V)
            after = translate(model, SOURCE, other, LENGTHS)
            np.testing.assert_array_equal(after[:, :changed], before[:, :changed])
            assert (after[:, changed:] != before[:, changed:]).any(-1).all()

    def test_derivatives_vanish_exactly_above_the_diagonal(self):
        decoder = stack(Decoder)
        (direction,) = draw((D,))  # any: the sum of normalised features would be constant

        @jax.jit
        @jax.jacrev
        def derivative(inputs):
            outputs, _ = decoder(inputs, MEMORY[0])
            return outputs @ direction

        depends = (np.asarray(derivative(INPUTS[0])) != 0).any(-1)
        np.testing.assert_array_equal(depends, np.tri(T, dtype=bool))

    def test_a_given_target_mask_replaces_the_causal_one(self):
        model = small_translator()

        def run(mask):
            return model(SOURCE, TARGET, source_mask=None, memory_mask=None, target_mask=mask)

        default, causal, full = (
            jax.jit(run)(mask) for mask in (None, masks.causal(), masks.window(T, T))
        )
        np.testing.assert_array_equal(default, causal)
        assert not np.allclose(full[:, 0], causal[:, 0], atol=1e-3)


class TestPadding:
    """What stands behind the length of a source does not exist."""

    def test_tokens_behind_the_length_never_matter(self):
        model = small_translator()
        padding = np.arange(S) >= LENGTHS[:, None]
        other = jnp.where(padding, tokens(B, S, seed=3), SOURCE)
        assert (other != SOURCE).any()
        np.testing.assert_array_equal(
            translate(model, other, TARGET, LENGTHS), translate(model, SOURCE, TARGET, LENGTHS)
        )

    def test_nor_does_their_number(self):
        model = small_translator()
        longer = jnp.concatenate([SOURCE, tokens(B, 4, seed=3)], axis=1)
        assert_close(
            translate(model, longer, TARGET, LENGTHS), translate(model, SOURCE, TARGET, LENGTHS)
        )

    def test_tokens_before_the_length_matter(self):
        model = small_translator()
        before = translate(model, SOURCE, TARGET, LENGTHS)
        for row, length in enumerate(LENGTHS):
            last = SOURCE.at[row, length - 1].set((SOURCE[row, length - 1] + 1) % V)
            after = translate(model, last, TARGET, LENGTHS)
            assert (after[row] != before[row]).any(-1).all()

    def test_rows_of_a_batch_do_not_hear_each_other(self):
        model = small_translator()
        before = translate(model, SOURCE, TARGET, LENGTHS)
        for row in range(B):
            source = SOURCE.at[row].set(tokens(S, seed=3))
            target = TARGET.at[row].set(tokens(T, seed=4))
            lengths = LENGTHS.copy()
            lengths[row] = 1
            after = translate(model, source, target, lengths)
            others = np.arange(B) != row
            np.testing.assert_array_equal(after[others], before[others])
            assert (after[row] != before[row]).any(-1).all()

    def test_an_empty_source_gives_finite_logits_and_gradients(self):
        lengths = np.array([S, 0, 0])
        for changes in (PRE, POST):
            loss, slopes = loss_and_gradient(small_translator(**changes), lengths)
            assert np.isfinite(loss)
            chex.assert_tree_all_finite(nnx.split(slopes)[1])


@jax.jit
@jax.value_and_grad
def loss_and_gradient(model, lengths):
    logits = translate(model, SOURCE, TARGET, lengths)
    scores = jnp.take_along_axis(jax.nn.log_softmax(logits), TARGET[..., None], axis=-1)
    return -scores.mean()


class TestParameters:
    """How many there are, who shares them, and that each is of use."""

    @pytest.mark.parametrize("tie", ["none", "output", "all"])
    def test_ties_save_a_table_each(self, tie):
        model = small_translator(tie=tie)
        (K, H, F, source_words) = DIMS["KHFv"]
        attention = (D + 1) * (N + 2 * K) * H + (N * H + 1) * D
        feed_forward = (D + 1) * F + (F + 1) * D
        encoder = ENCODER_LAYERS * (attention + feed_forward + 2 * 2 * D) + 2 * D
        decoder = DECODER_LAYERS * (2 * attention + feed_forward + 3 * 2 * D) + 2 * D
        tables = {
            "none": V * D + source_words * D + D * V,  # the output layer has no bias
            "output": V * D + source_words * D,
            "all": V * D,
        }
        total = sum(parameter.size for parameter in jax.tree.leaves(model))
        assert total == encoder + decoder + tables[tie]

    def test_a_tied_output_is_the_target_table(self):
        for tie in ("output", "all"):
            model = small_translator(tie=tie)
            (features,) = draw((B, T, D))
            expected = np.asarray(features) @ np.asarray(model.target_embedding.tokens[...]).T
            assert_close(model.logits(features), expected)

    def test_an_untied_output_is_a_layer_of_its_own(self):
        model = small_translator(tie="none")
        (features,) = draw((B, T, D))
        expected = np.asarray(features) @ np.asarray(model.output.kernel[...])
        assert_close(model.logits(features), expected)

    def test_all_tied_reads_the_source_by_the_target_table(self):
        model = small_translator(tie="all")
        assert model.source_embedding is None
        expected, _ = model.encoder(model.target_embedding(SOURCE), mask=SOURCE_MASK)
        assert_close(model.encode(SOURCE, mask=SOURCE_MASK), expected)

    def test_two_vocabularies_of_different_size_cannot_share_a_table(self):
        with pytest.raises(ValueError, match="got 19 source and 17 target words: use tie='output'"):
            EncoderDecoder(
                small_config(tie="all"),
                source_vocab_size=19,
                target_vocab_size=17,
                rngs=nnx.Rngs(0),
            )

    @pytest.mark.parametrize("changes", [PRE, POST], ids=NORMS)
    def test_the_gradient_reaches_every_parameter_of_every_layer(self, changes):
        model = small_translator(**changes)
        _, gradient = loss_and_gradient(model, LENGTHS)
        for path, slopes in jax.tree_util.tree_leaves_with_path(gradient):
            name = jax.tree_util.keystr(path)
            layers = slopes if ".layers" in name else slopes[None]
            for layer in layers:
                steepest = np.abs(layer).max()
                if ".key.bias" in name:
                    # It adds the same number to every score of a query, and softmax forgets it.
                    assert steepest < 1e-7, name
                else:
                    assert steepest > 1e-5, name


class TestObservation:
    """Weights for whoever asks, and nothing changes because somebody asked."""

    def test_decode_returns_the_weights_of_every_layer(self):
        model = small_translator()
        # Without its optimisations, XLA rounds a program that returns more in another way.
        as_usual = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}

        @functools.partial(jax.jit, static_argnums=0, compiler_options=as_usual)
        def decode(returning):
            memory = model.encode(SOURCE, mask=SOURCE_MASK)
            return model.decode(TARGET, memory, memory_mask=SOURCE_MASK, returning=returning)

        features, nothing = decode(())
        observed, extras = decode(("weights",))
        assert nothing == {"self": {}, "cross": {}}
        np.testing.assert_array_equal(observed, features)
        chex.assert_shape(extras["self"]["weights"], (DECODER_LAYERS, B, N, T, T))
        chex.assert_shape(extras["cross"]["weights"], (DECODER_LAYERS, B, N, T, S))
        for weights in (extras["self"]["weights"], extras["cross"]["weights"]):
            assert_close(weights.sum(-1), np.ones(weights.shape[:-1]))
        behind = np.arange(S) >= LENGTHS[:, None, None, None]
        assert not np.where(behind, extras["cross"]["weights"], 0).any()

    def test_the_encoder_returns_the_weights_of_every_layer(self):
        encoder = stack(Encoder)
        _, extras = jax.eval_shape(
            functools.partial(encoder, mask=None, returning=("weights", "logsumexp")), INPUTS
        )
        shapes = jax.tree.map(lambda array: array.shape, extras)
        weights = (ENCODER_LAYERS, B, N, T, T)
        assert shapes == {"self": {"weights": weights, "logsumexp": weights[:-1]}}


class TestDropout:
    """A key drops; every sublayer of every layer draws its own."""

    def test_the_key_decides(self):
        model = small_translator(dropout=0.3, attention_dropout=0.2)
        plain = translate(small_translator(), SOURCE, TARGET, LENGTHS)
        np.testing.assert_array_equal(translate(model, SOURCE, TARGET, LENGTHS), plain)
        first, again, other = (
            translate(model, SOURCE, TARGET, LENGTHS, jax.random.key(seed)) for seed in (0, 0, 1)
        )
        np.testing.assert_array_equal(first, again)
        for dropped in (first, other):
            assert not np.allclose(dropped, plain, atol=1e-2)
        assert not np.allclose(first, other, atol=1e-2)

    def test_encoder_decoder_and_both_embeddings_drop_by_keys_of_their_own(self):
        # The same words on both sides, embedded by one table and read by no layer: what remains is
        # the dropout of the embeddings, and two equal keys would drop the same entries.
        model = small_translator(
            dropout=0.5, tie="all", norm="post", encoder_layers=0, decoder_layers=0
        )
        key = jax.random.key(0)
        memory, features = sides(model, *jax.random.split(key))
        lost = np.asarray(memory == 0), np.asarray(features == 0)
        for mine in (*lost, lost[0] ^ lost[1]):
            np.testing.assert_allclose(mine.mean(), 0.5, atol=0.2)
        logits = model(TARGET, TARGET, source_mask=None, memory_mask=None, key=key)
        assert_close(logits, model.logits(features))

    def test_every_sublayer_of_every_layer_drops_entries_of_its_own(self):
        # All sublayers say 1 and nobody normalises their sum, so the residual stream counts how
        # many were kept. Six fair coins have the variance 6/4; two that fall alike add 1/2.
        decoder = stack(Decoder, dropout=0.5, decoder_layers=2)
        decoder.norm = None
        constants = {".output.bias.value": 1, ".narrow.bias.value": 1}
        decoder.layers = jax.tree_util.tree_map_with_path(
            lambda path, x: jnp.full_like(x, ending(constants, jax.tree_util.keystr(path))),
            decoder.layers,
        )
        inputs = jnp.zeros((50, T, D))
        outputs, _ = decoder(inputs, inputs, key=jax.random.key(0))
        kept = np.asarray(outputs) / 2
        assert set(kept.ravel()) == set(range(7))
        np.testing.assert_allclose(kept.var(), 6 / 4, atol=0.2)
        assert (kept[0] != kept[1]).mean() > 0.5  # 0.77 by chance

    def test_self_and_cross_attention_drop_pairs_of_their_own(self):
        # Each says how many of its pairs were kept, as a mean over N heads and T keys of 0 or 2,
        # which has the variance 1 / (N * T). Two that drop alike would add up to 4 of these.
        module = block(attention_dropout=0.5)
        constants = {".value.bias.value": 1, ".output.kernel.value": 1 / (N * DIMS["H"][0])}
        module = jax.tree_util.tree_map_with_path(
            lambda path, x: jnp.full_like(x, ending(constants, jax.tree_util.keystr(path))), module
        )
        inputs = jnp.zeros((200, T, D))
        outputs, _ = module(inputs, inputs, mask=None, key=jax.random.key(0))
        np.testing.assert_allclose(np.var(outputs[..., 0]) * N * T, 2, rtol=0.25)


def ending(constants, path):
    return next((number for end, number in constants.items() if path.endswith(end)), 0)


def sides(model, encode_key, decode_key):
    """What the encoder and the decoder make of the same words."""
    memory = model.encode(TARGET, mask=None, key=encode_key)
    features, _ = model.decode(TARGET, memory, memory_mask=None, key=decode_key)
    return memory, features


class TestPytree:
    """A module is a plain pytree: every transform of jax takes it as it is."""

    def test_split_and_merge_are_a_round_trip(self):
        model = small_translator()
        definition, parameters = nnx.split(model)
        again = nnx.merge(definition, parameters)
        np.testing.assert_array_equal(
            translate(again, SOURCE, TARGET, LENGTHS), translate(model, SOURCE, TARGET, LENGTHS)
        )

    def test_vmap_runs_an_ensemble(self):
        members = [stack(Encoder, seed) for seed in range(3)]
        ensemble = jax.tree.map(lambda *parameters: jnp.stack(parameters), *members)
        run = functools.partial(Encoder.__call__, mask=None)
        together, _ = jax.jit(jax.vmap(run, in_axes=(0, None)))(ensemble, INPUTS)
        apart = [jax.jit(run)(member, INPUTS)[0] for member in members]
        assert_close(together, np.stack(apart))

    def test_scan_trains_one(self):
        start = stack(Encoder, encoder_layers=1)

        def step(model, inputs):
            def loss(model):
                return (model(inputs, mask=None)[0] ** 2).mean()

            value, slopes = jax.value_and_grad(loss)(model)
            return jax.tree.map(lambda x, slope: x - 0.1 * slope, model, slopes), value

        batches = jnp.stack([INPUTS, INPUTS[::-1], INPUTS])
        scanned, losses = jax.jit(functools.partial(jax.lax.scan, step))(start, batches)
        model, run = start, jax.jit(step)
        for inputs, value in zip(batches, losses, strict=True):
            model, expected = run(model, inputs)
            assert_close(value, expected)
        assert losses[-1] < losses[0]
        chex.assert_trees_all_close(nnx.split(scanned)[1], nnx.split(model)[1], atol=1e-4)

"""Generation with real models: with a cache, the answers are those of full passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.decoding import GNMT, Beam, Greedy, StoppingCriteria, decode, generate
from attention.modules import (
    EncoderDecoder,
    LanguageModel,
    RecurrentConfig,
    RecurrentEncoderDecoder,
    TransformerConfig,
)
from attention.primitives import masks
from tests.attention.modules.inputs import fill, filled, shapes_of
from tests.attention.primitives.inputs import jitted

V, BOS, END, L = 23, 1, 3, 7
SIZES = {"width": 24, "num_heads": 2, "hidden": 32, "max_length": 40}
PROMPTS = [[5, 9, 11, 6, 7], [8], [12, 4, 15]]
LENGTHS = np.array([len(ids) for ids in PROMPTS], np.int32)
INPUTS = np.array([ids + [0] * (5 - len(ids)) for ids in PROMPTS], np.int32)
B = len(PROMPTS)


def randomized(shapes, seed):
    """Fill a model so that answers consist of several tokens, and some of them end."""
    return jax.tree.map(lambda leaf: jax.device_put(1.5 * np.asarray(leaf)), fill(shapes, seed))


def language_model(seed=4, **options):
    config = TransformerConfig(**SIZES | {"decoder_layers": 2, **options})
    return randomized(shapes_of(LanguageModel, config, vocab_size=V), seed)


def encoder_decoder(**options):
    config = TransformerConfig(
        **SIZES | {"encoder_layers": 1, "decoder_layers": 2, "tie": "none", **options}
    )
    sizes = {"source_vocab_size": V, "target_vocab_size": V}
    return randomized(shapes_of(EncoderDecoder, config, **sizes), seed=10)


def recurrent(**options):
    config = RecurrentConfig(embedding_width=12, hidden=20, **options)
    sizes = {"source_vocab_size": V, "target_vocab_size": V}
    return filled(lambda: RecurrentEncoderDecoder.from_config(config, **sizes, rngs=nnx.Rngs(0)))


GREEDY, BEAM = Greedy(), Beam(3, 2, GNMT(0.6), True)


def recompute(score):
    """Return a step that computes the logits of all tokens again, and its state.

    `score(tokens [B, L], index [B])` returns the logits of the token after number `index`.
    """

    def step(state, tokens):
        read, index = state
        read = read.at[jnp.arange(B), index].set(tokens)
        return score(read, index), (read, index + 1)

    return step, (jnp.zeros((B, L), jnp.int32), jnp.zeros(B, jnp.int32))


def assert_same(found, expected):
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_array_equal(found.tokens, expected.tokens[..., : found.tokens.shape[-1]])
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-3)
    assert len({*np.ravel(found.tokens).tolist()}) > 3


def test_ragged_prompts_with_a_cache_equal_full_passes():
    """Recomputed: prompt and answer of each row without padding between them."""
    model = language_model(29, positions="rotary", num_kv_heads=1, decoder_layers=1)
    strategies = GREEDY, BEAM

    @jitted
    def recomputed(model, inputs, length):
        def score(answer, index):
            tokens = jnp.concatenate([inputs, jnp.zeros((B, L), jnp.int32)], axis=1)
            places = jnp.arange(5 + L)[None]
            taken = jnp.take_along_axis(answer, places - length[:, None] + 1, axis=1, mode="clip")
            tokens = jnp.where(places < length[:, None] - 1, tokens, taken)
            logits = model(tokens).logits
            return jnp.take_along_axis(logits, (length - 1 + index)[:, None, None], axis=1)[:, 0]

        step, state = recompute(score)
        last = jnp.take_along_axis(inputs, length[:, None] - 1, axis=1)[:, 0]
        stopping = StoppingCriteria(L, END)
        return [decode(step, state, last, strategy, stopping) for strategy in strategies]

    given = {"max_tokens": L, "stop": END}
    for strategy, expected in zip(strategies, recomputed(model, INPUTS, LENGTHS), strict=True):
        assert_same(generate(model, PROMPTS, strategy=strategy, slots=2, **given), expected)


ARRAYS = {"inputs": INPUTS, "lengths": LENGTHS}


@pytest.mark.parametrize(
    ("make", "strategy", "given"),
    [
        (lambda: encoder_decoder(positions="rotary"), GREEDY, {"inputs": PROMPTS}),
        (
            lambda: encoder_decoder(positions="relative", encoder_layers=0, decoder_layers=1),
            BEAM,
            ARRAYS | {"slots": 2},
        ),
        (lambda: recurrent(cell="gru", attention="additive"), GREEDY, ARRAYS),
        (
            lambda: recurrent(cell="lstm", attention="multiplicative"),
            Beam(3, 2, GNMT(0.6)),
            ARRAYS | {"slots": 2},
        ),
    ],
    ids=["transformer", "transformer, beam in slots", "gru", "lstm, beam in slots"],
)
def test_translations_with_a_cache_equal_full_passes(make, strategy, given):
    model = make()

    @jitted
    def recomputed(model, source, lengths):
        mask = masks.lengths(lengths)
        encoded = model.encode(source, mask=mask).features

        def score(answer, index):
            output = model.decode(answer, encoded, encoder_mask=mask)
            features = jnp.take_along_axis(output.features, index[:, None, None], axis=1)[:, 0]
            return model.logits(features)

        step, state = recompute(score)
        start = jnp.full(B, BOS, jnp.int32)
        return decode(step, state, start, strategy, StoppingCriteria(L, END))

    found = generate(model, **given, strategy=strategy, max_tokens=L, stop=END, start=BOS)
    assert_same(found, recomputed(model, INPUTS, LENGTHS))


def test_observed_attention_equals_that_of_a_full_pass():
    """Each token of each hypothesis has the weights of the pass over its whole answer."""
    model = encoder_decoder(positions="rotary", encoder_layers=0)
    given = {"lengths": LENGTHS, "max_tokens": L, "stop": END, "start": BOS}
    found = generate(model, INPUTS, strategy=Beam(3, 2), returning=("weights",), **given)
    found = jax.device_get(found)
    observed = [layer["cross_attention"]["weights"] for layer in found.observed]
    mask = masks.lengths(LENGTHS)
    read = np.concatenate([np.full((B, 2, 1), BOS), found.tokens[..., :-1]], axis=-1)

    @jitted
    def full_pass(model, target):
        encoded = model.encode(INPUTS, mask=mask).features
        output = model.decode(target, encoded, encoder_mask=mask, returning=("weights",))
        return [layer["cross_attention"]["weights"] for layer in output.attention]

    valid = np.arange(L) < np.asarray(found.lengths)[..., None]
    for rank in range(2):
        for ours, theirs in zip(observed, full_pass(model, read[:, rank]), strict=True):
            ours = np.asarray(ours)[:, rank].reshape(B, L, 2, 5)  # [B, L, N, 1, S]
            theirs = np.moveaxis(np.asarray(theirs), 1, 2)
            np.testing.assert_allclose(
                ours[valid[:, rank]], theirs[valid[:, rank]], rtol=1e-4, atol=1e-5
            )
            assert not ours[~valid[:, rank]].any()


def test_model_in_training_mode_is_refused():
    model = language_model(dropout=0.1)
    model.train()
    with pytest.raises(ValueError, match=r"has dropout=0.1: call model.eval\(\) before$"):
        generate(model, PROMPTS, max_tokens=2)


@pytest.mark.parametrize("tie", ["none", "all"])
def test_ids_outside_the_vocabulary(tie):
    """Of the source and the target; a source embedding may have no table."""
    model = encoder_decoder(tie=tie)
    with pytest.raises(ValueError, match=r"inputs\[0\] has token 23, and the vocabulary has 23"):
        generate(model, [[V]], max_tokens=3, start=BOS)
    with pytest.raises(ValueError, match=r"stop\[0\] has token 23, and the vocabulary has 23"):
        generate(model, [[3]], max_tokens=3, start=BOS, stop=V)

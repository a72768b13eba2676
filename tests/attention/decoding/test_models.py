"""Generation with real models: with a cache, the answers are those of full passes."""

import functools
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.decoding import (
    GNMT,
    Beam,
    Greedy,
    Sample,
    StoppingCriteria,
    decode,
    generate,
    stream,
)
from attention.modules import (
    EncoderDecoder,
    LanguageModel,
    RecurrentConfig,
    RecurrentEncoderDecoder,
    TransformerConfig,
)
from attention.primitives import masks
from experiments.benchmarks.models.recompute import recompute

V, BOS, END, L = 23, 1, 3, 7
SIZES = {"width": 24, "num_heads": 2, "hidden": 32, "max_length": 40}
PROMPTS = [[5, 9, 11, 6, 7], [8], [12, 4, 15]]
LENGTHS = jnp.array([len(ids) for ids in PROMPTS], jnp.int32)
INPUTS = jnp.array([ids + [0] * (5 - len(ids)) for ids in PROMPTS], jnp.int32)
B = len(PROMPTS)


def randomized(model, scale):
    """Give all parameters random values, so that logits differ."""

    def random(path, leaf):
        rng = jax.random.fold_in(
            jax.random.key(10), zlib.crc32(jax.tree_util.keystr(path).encode()) % 2**31
        )
        return leaf + scale * jax.random.normal(rng, leaf.shape, leaf.dtype)

    definition, state = nnx.split(model)
    return nnx.merge(definition, jax.tree.map_with_path(random, state))


@functools.cache
def language_model(**options):
    config = TransformerConfig(**SIZES | {"decoder_layers": 2, **options})
    model = LanguageModel.from_config(config, vocab_size=V, rngs=nnx.Rngs(0))
    return randomized(model, scale=0.4)


@functools.cache
def encoder_decoder(**options):
    config = TransformerConfig(
        **SIZES | {"encoder_layers": 1, "decoder_layers": 2, "tie": "none", **options}
    )
    sizes = {"source_vocab_size": V, "target_vocab_size": V}
    model = EncoderDecoder.from_config(config, **sizes, rngs=nnx.Rngs(0))
    return randomized(model, scale=0.7)


STRATEGIES = {"greedy": Greedy(), "sample": Sample(top_k=5), "beam": Beam(3, 2, GNMT(0.6), True)}
RNG = jax.random.key(5)
KEYS = jax.vmap(jax.random.fold_in, (None, 0))(RNG, jnp.arange(B))


def assert_same(found, expected):
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_array_equal(found.tokens, expected.tokens[..., : found.tokens.shape[-1]])
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-3)
    assert len({*np.ravel(found.tokens).tolist()}) > 3


def strategies(positions):
    """Return all strategies for rotary positions, and a beam, which moves caches, for others."""
    return STRATEGIES if positions == "rotary" else {"beam": STRATEGIES["beam"]}


@pytest.mark.parametrize("positions", ["rotary", "alibi", "learned"])
def test_ragged_prompts_with_a_cache_equal_full_passes(positions):
    """Recomputed: prompt and answer of each row without padding between them."""
    model = language_model(positions=positions, num_kv_heads=1)

    @jax.jit
    def recomputed(model, inputs, length, rng):
        def score(answer, index):
            tokens = jnp.concatenate([inputs, jnp.zeros((B, L), jnp.int32)], axis=1)
            places = jnp.arange(5 + L)[None]
            taken = jnp.take_along_axis(answer, places - length[:, None] + 1, axis=1, mode="clip")
            tokens = jnp.where(places < length[:, None] - 1, tokens, taken)
            logits = model(tokens).logits
            return jnp.take_along_axis(logits, (length - 1 + index)[:, None, None], axis=1)[:, 0]

        step, state = recompute(score, batch_size=B, max_length=L)
        last = jnp.take_along_axis(inputs, length[:, None] - 1, axis=1)[:, 0]
        stopping = StoppingCriteria(L, END)
        return {
            name: decode(step, state, last, strategy, stopping, rng=rng)
            for name, strategy in strategies(positions).items()
        }

    expected = recomputed(model, INPUTS, LENGTHS, KEYS)
    for name, strategy in strategies(positions).items():
        found = generate(
            model, PROMPTS, strategy=strategy, max_tokens=L, stop=END, rng=RNG, slots=2
        )
        assert_same(found, expected[name])
    if "greedy" in expected:
        tokens = np.stack([*stream(model, PROMPTS, max_tokens=L, stop=END)], axis=1)
        np.testing.assert_array_equal(tokens, expected["greedy"].tokens[:, : tokens.shape[1]])


@pytest.mark.parametrize("positions", ["rotary", "relative"])
def test_translations_with_a_cache_equal_full_passes(positions):
    model = encoder_decoder(positions=positions)

    @jax.jit
    def recomputed(model, source, lengths, rng):
        mask = masks.lengths(lengths)
        encoded = model.encode(source, mask=mask).features

        def score(answer, index):
            output = model.decode(answer, encoded, encoder_mask=mask)
            features = jnp.take_along_axis(output.features, index[:, None, None], axis=1)[:, 0]
            return model.logits(features)

        step, state = recompute(score, batch_size=B, max_length=L)
        start = jnp.full(B, BOS, jnp.int32)
        stopping = StoppingCriteria(L, END)
        return {
            name: decode(step, state, start, strategy, stopping, rng=rng)
            for name, strategy in strategies(positions).items()
        }

    expected = recomputed(model, INPUTS, LENGTHS, KEYS)
    for name, strategy in strategies(positions).items():
        given = {"strategy": strategy, "max_tokens": L, "stop": END, "start": BOS, "rng": RNG}
        assert_same(generate(model, PROMPTS, **given), expected[name])
        assert_same(generate(model, INPUTS, lengths=LENGTHS, **given, slots=2), expected[name])


@pytest.mark.parametrize(
    ("cell", "attention"), [("gru", "additive"), ("lstm", "multiplicative"), ("gru", "none")]
)
def test_recurrent_translations_in_one_program_equal_full_passes(cell, attention):
    """Greedy, a beam of 1 and slots agree, traced as a part of the caller's program."""
    config = RecurrentConfig(embedding_width=12, hidden=20, cell=cell, attention=attention)
    sizes = {"source_vocab_size": V, "target_vocab_size": V}
    model = randomized(
        RecurrentEncoderDecoder.from_config(config, **sizes, rngs=nnx.Rngs(0)), scale=0.7
    )
    given = {"lengths": LENGTHS, "max_tokens": L, "stop": END, "start": BOS}
    wide = Beam(3, 2, GNMT(0.6))

    @jax.jit
    def run(model, source):
        mask = masks.lengths(LENGTHS)
        encoded = model.encode(source, mask=None, lengths=LENGTHS).features

        def score(answer, index):
            logits = model.logits(model.decode(answer, encoded, encoder_mask=mask).features)
            return jnp.take_along_axis(logits, index[:, None, None], axis=1)[:, 0]

        step, state = recompute(score, batch_size=B, max_length=L)
        start, stopping = jnp.full(B, BOS, jnp.int32), StoppingCriteria(L, END)
        expected = [decode(step, state, start, one, stopping) for one in (Greedy(), wide)]
        ways = {"strategy": Greedy()}, {"strategy": Beam(1)}, {"strategy": Greedy(), "slots": 2}
        greedy = [generate(model, source, **given, **way) for way in ways]
        return expected, greedy, generate(model, source, **given, strategy=wide, slots=2)

    (greedy, beam), found, wide_in_slots = run(model, INPUTS)
    for one in found:
        assert_same(one, greedy)
    assert_same(wide_in_slots, beam)


def test_observed_attention_equals_that_of_a_full_pass():
    """Each token of each hypothesis has the weights of the pass over its whole answer."""
    model = encoder_decoder(positions="rotary")
    found = generate(
        model,
        INPUTS,
        lengths=LENGTHS,
        strategy=Beam(3, 2),
        max_tokens=L,
        stop=END,
        start=BOS,
        returning=("weights",),
    )
    observed = [layer["cross_attention"]["weights"] for layer in found.observed]
    mask = masks.lengths(LENGTHS)
    read = jnp.concatenate([jnp.full((B, 2, 1), BOS), found.tokens[..., :-1]], axis=-1)

    @jax.jit
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


def test_inputs_are_padded_no_further_than_positions_reach():
    """A bucket of 16 and 30 tokens need more than 40 learned positions, a prompt of 5 does not."""
    model = language_model(positions="learned", num_kv_heads=1)
    found = generate(model, PROMPTS, max_tokens=30)
    assert found.tokens.shape == (3, 30) and np.isfinite(found.scores).all()
    tokens = [*stream(model, PROMPTS[0], max_tokens=30)]
    np.testing.assert_array_equal(tokens, found.tokens[0])
    with pytest.raises(ValueError, match="a prompt of 5 tokens and max_tokens=37 need 41 posi"):
        generate(model, PROMPTS, max_tokens=37)


@pytest.mark.parametrize("tie", ["none", "all"])
def test_ids_outside_the_vocabulary(tie):
    """Of the prompt, the source, and the target; a source embedding may have no table."""
    with pytest.raises(ValueError, match=r"inputs\[1\] has token 23, and the vocabulary has 23"):
        generate(language_model(positions="rotary"), [[3], [4, V]], max_tokens=3)
    model = encoder_decoder(tie=tie)
    with pytest.raises(ValueError, match=r"inputs\[0\] has token 23, and the vocabulary has 23"):
        generate(model, [[V]], max_tokens=3, start=BOS)
    with pytest.raises(ValueError, match=r"stop\[0\] has token 23, and the vocabulary has 23"):
        generate(model, [[3]], max_tokens=3, start=BOS, stop=V)


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal"])
def test_prompts_without_learned_positions_continue_beyond_max_length(positions):
    model = language_model(positions=positions, num_kv_heads=1)
    assert model.max_input_length(60) == 41
    found = generate(model, PROMPTS, max_tokens=60)
    assert np.isfinite(found.scores).all()
    alone = generate(model, INPUTS, lengths=LENGTHS, max_tokens=60)
    np.testing.assert_array_equal(found.tokens, alone.tokens)

"""Cached decoding equals one full pass, for every mask and position encoding."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import masks
from attention.modules import POSITIONS, LanguageModel
from tests.attention.modules import inputs
from tests.attention.modules.inputs import (
    DIMS,
    LENGTHS,
    fill,
    language_model,
    shapes_of,
    small_config,
    small_translator,
    tokens,
)
from tests.attention.primitives.inputs import changed, jitted

B, S, D, N, K, V = DIMS["BSDNKV"]
PIECE, STEPS = 5, 3
LONGEST = 2 * PIECE + STEPS
# An id out of range: its vector is NaN, and so is what sees it.
TOKENS = changed(tokens(B, LONGEST), (0, 6), V)
assert_close = functools.partial(inputs.assert_close, tolerance=2e-5)

# Masks of the tests; the keys of the prefix are in the first piece.
MASKS = {
    "causal": masks.causal(),
    "window": masks.causal() & masks.window(before=3),
    "prefix": masks.prefix(2),
    "block": masks.causal() & masks.block(4),
    "segments": masks.causal() & masks.segments([1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3]),
    "nothing": masks.causal() & ~masks.window(before=2),
}
# Number of tokens of each row in the first piece and in the second.
RAGGED = [([5, 5, 5], [5, 5, 5]), ([2, 5, 3], [3, 0, 1]), ([4, 2, 5], [0, 2, 5])]

# Each position encoding with a grouping and a kind of norm; two layers for one of them.
MODELS = {
    "none": {"num_kv_heads": N, "qk_norm": "layer"},
    "sinusoidal": {"num_kv_heads": 1, "norm_placement": "post"},
    "learned": {"num_kv_heads": K, "norm": "rms"},
    "rotary": {"num_kv_heads": K, "qk_norm": "rms", "rotary": {"base": 100.0}, "decoder_layers": 2},
    "alibi": {"num_kv_heads": 1, "norm_placement": "both"},
    "relative": {"num_kv_heads": N, "softcap": 5.0},
}


def in_pieces(model, mask, pieces, cache):
    """Read ragged pieces and then one token at a time: logits by position, and the cache."""

    def read(carry, number, lengths):
        cache, logits = carry
        positions = cache.lengths[:, None] + jnp.arange(number)[None]
        piece = jnp.take_along_axis(TOKENS, jnp.minimum(positions, LONGEST - 1), axis=1)
        output = model(piece, mask=mask, cache=cache, lengths=lengths)
        end = output.cache.lengths[:, None]
        places = jnp.where(positions < end, positions, LONGEST)  # drop the padding
        rows, found = jnp.arange(B)[:, None], output.logits.astype(logits.dtype)
        return output.cache, logits.at[rows, places].set(found, mode="drop")

    def scan(carry, number, lengths, length=None):
        def step(carry, lengths):
            return read(carry, number, lengths), None

        return jax.lax.scan(step, carry, lengths, length=length)[0]

    carry = cache, jnp.full((B, LONGEST, V), jnp.nan)
    cache, logits = scan(scan(carry, PIECE, pieces), 1, None, length=STEPS)
    return logits, cache


def assert_equal_to_full_pass(model, cases, *, ring=None, as_arrays=True):
    """Compile once, if masks are bool arrays; lengths are traced."""
    model.decoder.causal = False  # the masks alone decide

    @jitted
    def both(model, mask, full, lengths):
        cache = model.new_cache((B,), ring or LONGEST, ring=bool(ring))
        pieces, cache = in_pieces(model, mask, lengths, cache)
        return pieces, model(TOKENS, mask=full).logits, cache.lengths

    counted = np.arange(LONGEST, dtype=np.int32)
    for mask in cases:
        pair = mask, mask & masks.window(before=ring - 1 if ring else LONGEST, after=None)
        if as_arrays:
            pair = tuple(each(counted[:, None], counted[None]) for each in pair)
        for lengths in RAGGED:
            pieces, whole, read = both(model, *pair, np.array(lengths))
            np.testing.assert_array_equal(read, np.sum(lengths, axis=0) + STEPS)
            for row in range(B):
                assert_close(pieces[row, : read[row]], whole[row, : read[row]])
            assert np.isnan(whole[0]).any()


@pytest.mark.parametrize(
    ("positions", "ring"), [*((each, None) for each in POSITIONS), ("rotary", 4), ("relative", 4)]
)
def test_cached_decoding_equals_full_pass(positions, ring):
    """A ring equals a window."""
    changes = {"decoder_layers": 1} | ({} if ring else MODELS[positions])
    model = language_model(positions=positions, **changes)
    cases = [MASKS["block"], MASKS["prefix"]] if ring else MASKS.values()
    assert_equal_to_full_pass(model, cases, ring=ring)


@pytest.mark.parametrize("ring", [None, 5])
def test_masks_beside_a_cache(ring):
    """They are composed, and of each example."""
    segments = np.sort(np.random.default_rng(0).integers(4, size=(B, LONGEST)))
    thirds = masks.from_function(lambda query, key: (key <= query) & (query * key % 3 == 0))
    lengths = masks.lengths([6, 9, LONGEST]) | ~masks.block(3)
    composed = masks.segments(segments) & np.tri(LONGEST, dtype=bool) & lengths
    cases = composed, (masks.segments(np.arange(LONGEST) // 4) | ~masks.window(1)) & thirds
    model = language_model(positions="rotary", decoder_layers=1)
    assert_equal_to_full_pass(model, cases, ring=ring, as_arrays=False)


def test_local_and_global_layers_have_caches_of_their_own():
    """The pieces are longer than the windows, and ragged."""
    layers = [{"window": 0}, {}, {"window": 3, "rotary": {"base": 100.0}}]
    model = language_model(positions="rotary", decoder_layers=3, per_layer=layers)
    shapes = [each["self_attention"] for each in model.new_cache((B,), LONGEST).layers]
    assert [(each.size, each.ring) for each in shapes] == [(1, True), (LONGEST, False), (4, True)]
    assert_equal_to_full_pass(model, [MASKS["block"], MASKS["prefix"]])


def test_a_decoder_that_is_not_causal_reads_a_whole_text_at_once():
    config = small_config(positions="relative", decoder_layers=1)
    model = fill(shapes_of(LanguageModel, config, vocab_size=V, causal=False))
    assert not model.decoder.score.causal
    text = tokens(B, 5)

    @jitted
    def score(model, text):
        return model(text).logits, model(text, cache=model.new_cache((B,), 5)).logits

    whole, cached = score(model, text)
    assert_close(cached, whole)
    other, _ = score(model, changed(text, np.s_[:, -1], text[:, -1] + 1))
    assert (other != whole)[:, 0].any(-1).all()


@pytest.mark.parametrize("positions", ["rotary", "alibi", "none"])
def test_decoding_without_an_end_attends_to_the_last_max_length_tokens(positions):
    model = language_model(positions=positions, max_length=3, decoder_layers=1)
    assert model.max_input_length(4) is None
    text, lengths = tokens(2, 6), np.array([5, 5])

    @jitted
    def decode(model):
        state, first = model.prefill(text[:, :5], lengths, max_tokens=2)

        def step(state, token):
            output, state = model.step(state, token)
            return state, output.logits

        _, logits = jax.lax.scan(step, state, text[:, 4:].T)
        return first, logits[-1], model(text, mask=masks.window(2)).logits[:, -1]

    first, last, expected = decode(model)
    np.testing.assert_array_equal(first, text[:, 4])
    assert_close(last, expected)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_positions_of_embeddings_end_at_max_length(positions):
    model, translator = language_model(positions=positions), small_translator(positions=positions)
    assert model.max_input_length(18) == 6
    for read_on in (
        lambda: model(tokens(1, 24)),
        lambda: model.prefill(TOKENS[:, :7], np.array([7] * B), max_tokens=18),
        lambda: translator.prefill(TOKENS, LENGTHS, max_tokens=24),
    ):
        with pytest.raises(ValueError, match="24 tokens is longer than max_length"):
            jax.eval_shape(read_on)


class TestTranslator:
    """Keys and values of the encoder output are computed once."""

    SEGMENTS = np.sort(np.random.default_rng(0).integers(3, size=(2, B, S)))
    MASKS = (
        np.arange(S) < LENGTHS[:, None, None],
        SEGMENTS[0][:, :, None] == SEGMENTS[1][:, None],
        np.tri(S, k=-3, dtype=bool),  # nothing for three queries
    )

    def test_cached_decoding_equals_full_pass(self):
        """Compile once: masks are arrays."""
        sizes = {"encoder_layers": 1, "decoder_layers": 2}
        model = small_translator(positions="relative", tie="none", **sizes)
        source, target = tokens(B, S, seed=1), tokens(B, S, seed=2)

        @jitted
        def both(model, allowed):
            encoded = model.encode(source).features
            mask = masks.from_array(allowed)
            fields = {"encoder_mask": mask, "returning": ("logsumexp", "hidden_states")}
            whole = model.decode(target, encoded, **fields)
            cache = model.new_cache((B,), S, encoder_output=encoded)
            first = model.decode(target[:, :6], None, cache=cache, **fields)
            last = model.decode(target[:, 6:], None, cache=first.cache, **fields)

            def pair(name, axis):
                expected, *parts = (getattr(each, name) for each in (whole, first, last))
                return jax.tree.map(lambda *each: jnp.concatenate(each, axis), *parts), expected

            return pair("features", 1), pair("hidden_states", 1), pair("attention", -1)

        for mask in self.MASKS:
            pairs = both(model, np.broadcast_to(mask, (B, S, S))[:, None])
            assert [len(each) for each in pairs[-1][1]] == [2, 2]  # self- and cross-attention
            for ours, expected in pairs:
                chex.assert_trees_all_close(ours, expected, rtol=2e-5, atol=2e-5)

    def test_a_step_projects_and_checks_new_tokens_only(self):
        """No array of a step has the shape of the encoder output, to be projected or checked."""
        model = small_translator(decoder_layers=1)
        cache = model.new_cache((B,), 17, encoder_output=jnp.zeros((B, S, D)))
        step = jax.make_jaxpr(lambda: model.decode(TOKENS[:, :1], None, cache=cache))
        program = str(step())
        assert f"[{B},{S},{D}]" not in program
        checks = [line for line in program.splitlines() if "is_finite" in line]
        assert checks
        assert not [line for line in checks if f",{S}," in line or ",17," in line]


def read(number=1, *, batch=B, size=7, kind="sinusoidal", ring=False, **options):
    """Read so many tokens with a new cache."""
    model = language_model(positions=kind)
    return model(TOKENS[:, :number], cache=model.new_cache((batch,), size, ring=ring), **options)


def decode_with_a_second_encoder_output():
    model, source = small_translator(decoder_layers=1), jnp.zeros((B, S, D))
    cache = model.new_cache((B,), 7, encoder_output=source)
    return model.decode(TOKENS[:, :1], source, cache=cache)


ERRORS = {
    "give none beside it": decode_with_a_second_encoder_output,
    r"must be \[7, 7\], got \[3, 7\]": lambda: read(3, mask=np.ones((3, 7), bool)),
    r"must be \[7, 7\], got \[3, 3\]": lambda: read(3, mask=np.ones((3, 3), bool)),
    "a cache counts the positions of its tok": lambda: read(positions=np.arange(1)),
    "layer 0: a cache of 7 slots cannot hold 8 tokens": lambda: read(8),
    "a cache of 24 tokens is longer than max_len": lambda: read(size=24),
    r"for a batch of shape \(2,\), got \(3,\)": lambda: read(batch=2),
    "needs a cache made by new_cache of this model, got a tuple": lambda: language_model()(
        TOKENS[:, :1], cache=()
    ),
}


@pytest.mark.parametrize("words", ERRORS)
def test_errors_before_compilation(words):
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(ERRORS[words])

"""Cached decoding equals one full pass, for every mask and position encoding."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import masks, rotary
from attention.modules import (
    POSITIONS,
    CacheSpec,
    Context,
    CrossAttention,
    LanguageModel,
    SelfAttention,
)
from attention.primitives.cache import empty_cache
from tests.attention.modules import inputs
from tests.attention.modules.inputs import (
    DIMS,
    LENGTHS,
    fill,
    filled,
    language_model,
    shapes_of,
    small_config,
    small_translator,
    tokens,
)
from tests.attention.primitives.inputs import changed, draw, jitted

B, S, D, N, K, H, V = DIMS["BSDNKHV"]
PIECE, STEPS = 5, 3
LONGEST = 2 * PIECE + STEPS
TOKENS = tokens(B, LONGEST)

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
        start = cache.lengths
        positions = start[:, None] + jnp.arange(number)[None]
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


def assert_equal_to_full_pass(model, cases, *, ring=None):
    """Compile once: masks are arrays, and lengths are traced."""

    @jitted
    def both(model, allowed, full, lengths):
        cache = model.new_cache((B,), ring or LONGEST, ring=bool(ring))
        pieces, cache = in_pieces(model, masks.from_array(allowed), lengths, cache)
        return pieces, model(TOKENS, mask=full).logits, cache.lengths

    counted = np.arange(LONGEST, dtype=np.int32)
    for mask in cases:
        window = mask & masks.window(before=ring - 1, after=None) if ring else mask
        allowed, full = (each(counted[:, None], counted[None]) for each in (mask, window))
        for lengths in RAGGED:
            pieces, whole, read = both(model, allowed, full, np.array(lengths))
            np.testing.assert_array_equal(read, np.sum(lengths, axis=0) + STEPS)
            for row in range(B):
                assert_close(pieces[row, : read[row]], whole[row, : read[row]])


@pytest.mark.parametrize("positions", POSITIONS)
def test_cached_decoding_equals_full_pass(positions):
    model = language_model(**{"positions": positions, "decoder_layers": 1} | MODELS[positions])
    model.decoder.causal = False  # the masks alone decide
    assert_equal_to_full_pass(model, MASKS.values())


@pytest.mark.parametrize("positions", ["rotary", "relative"])
def test_ring_equals_window(positions):
    model = language_model(positions=positions, decoder_layers=1)
    model.decoder.causal = False
    assert_equal_to_full_pass(model, [MASKS["block"], MASKS["prefix"]], ring=4)


def test_local_and_global_layers_have_caches_of_their_own():
    """The pieces are longer than the windows, and ragged."""
    layers = [{"window": 1}, {}, {"window": 4, "rotary": {"base": 100.0}}]
    model = language_model(positions="rotary", decoder_layers=3, per_layer=layers)
    shapes = [each["self_attention"] for each in model.new_cache((B,), LONGEST).layers]
    assert [(each.size, each.ring) for each in shapes] == [(1, True), (LONGEST, False), (4, True)]
    model.decoder.causal = False
    assert_equal_to_full_pass(model, [masks.causal() & masks.block(6), MASKS["prefix"]])


def test_no_mask_is_causal_within_a_piece():
    """With a cache; without one, self-attention alone attends in both directions."""
    module, (inputs,) = small_attention(), draw((B, 5, D))
    cache = module.new_cache(CacheSpec(batch=(B,), size=5))
    ours, expected = (
        run(module, inputs, context).features
        for context in (Context(cache=cache), Context(mask=masks.causal()))
    )
    assert_close(ours, expected)


def test_a_decoder_that_is_not_causal_reads_a_whole_text_at_once():
    config = small_config(positions="relative", decoder_layers=1)
    model = fill(shapes_of(LanguageModel, config, vocab_size=V, causal=False))
    assert not model.decoder.score.causal
    score = jitted(lambda model, tokens: model(tokens).logits)
    whole = score(model, TOKENS)
    cached = jitted(lambda m: m(TOKENS, cache=m.new_cache((B,), LONGEST)).logits)(model)
    assert_close(cached, whole)
    other = score(model, changed(TOKENS, np.s_[:, -1], TOKENS[:, -1] + 1))
    assert (other != whole)[:, 0].any(-1).all()


def small_attention(cls=SelfAttention, **changes):
    sizes = {"num_heads": N, "num_kv_heads": K, "head_width": H} | changes
    return filled(lambda: cls(D, **sizes, rngs=nnx.Rngs(0)))


assert_close = functools.partial(inputs.assert_close, tolerance=2e-5)


@jitted
def run(module, inputs, context):
    return module(inputs, context=context)


@pytest.mark.parametrize("ring", [False, True], ids=["growing", "ring"])
def test_visible_nan_in_a_cache_gives_nan(ring):
    """The second token of the first row is NaN; a ring of four slots replaces it."""
    module = small_attention()
    (inputs,) = draw((2, 7, D))
    inputs, outputs = changed(inputs, (0, 1), np.nan), []
    cache = empty_cache((2,), 4 if ring else 7, num_kv_heads=K, head_width=H, ring=ring)
    for token in np.split(inputs, 7, axis=1):
        output = run(module, token, Context(cache=cache))
        outputs.append(output.features)
        cache = output.cache
    lost = np.zeros((2, 7), bool)
    lost[0, 1 : 5 if ring else 7] = True
    found = np.concatenate(outputs, axis=1)
    np.testing.assert_array_equal(np.isnan(found), np.broadcast_to(lost[..., None], found.shape))


def test_visible_nan_in_cross_attention_keys_gives_nan():
    module = small_attention(CrossAttention)
    inputs, source = draw((2, 3, D), (2, S, D))
    source = changed(source, (0, 1), np.nan)
    cache = module.new_cache(CacheSpec(batch=(2,), size=3, encoder_output=source))
    for context in (Context(encoder_output=source), Context(cache=cache)):
        for lengths, lost in ((S, [True, False]), (1, [False, False])):
            given = dataclasses.replace(context, encoder_mask=masks.lengths([lengths] * 2))
            output = run(module, inputs, given).features
            np.testing.assert_array_equal(np.isnan(output).all((1, 2)), lost)
            np.testing.assert_array_equal(np.isnan(output).any((1, 2)), lost)


@pytest.mark.parametrize(
    ("mask", "lengths", "ring"),
    [
        (masks.window(2) & masks.lengths(5) | ~masks.block(3), [4, 0, 2], False),
        (
            masks.segments([0, 0, 0, 1, 1, 1, 2])
            & masks.from_function(lambda query, key: (query * key) % 3 == 0)
            | ~masks.window(1),
            [1, 4, 3],
            True,
        ),
        (
            masks.segments([[0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 3], [0] * 7])
            & masks.lengths([3, 6, 7]),
            [3, 4, 1],
            False,
        ),
    ],
    ids=["growing", "ring", "of each example"],
)
def test_composed_masks(mask, lengths, ring):
    """Masks of masks, with a cache that may be a ring."""
    module, size, mask = small_attention(rotary=rotary), 5 if ring else 7, mask & masks.causal()
    (inputs,) = draw((B, 7, D))

    @jitted
    def both(module, lengths):
        cache = module.new_cache(CacheSpec(batch=(B,), size=size, ring=ring))
        context = Context(mask=mask, cache=cache, lengths=lengths)
        output = module(inputs[:, :4], context=context)
        places = jnp.arange(B)[:, None], lengths[:, None] + jnp.arange(3)[None]
        text = jnp.pad(inputs[:, :4], ((0, 0), (0, 3), (0, 0))).at[places].set(inputs[:, 4:])

        def read(cache, token):
            output = module(token[:, None], context=Context(mask=mask, cache=cache))
            return output.cache, output.features[:, 0]

        _, steps = jax.lax.scan(read, output.cache, jnp.swapaxes(inputs[:, 4:], 0, 1))
        visible = mask & masks.window(before=size - 1) if ring else mask
        whole = module(text, context=Context(mask=visible)).features
        return output.features, jnp.swapaxes(steps, 0, 1), whole

    first, steps, whole = both(module, np.array(lengths))
    for row, length in enumerate(lengths):
        ours = np.concatenate([first[row, :length], steps[row]])
        assert_close(ours, whole[row, : length + 3])


class TestTranslator:
    """Keys and values of the encoder output are computed once."""

    SOURCE, TARGET = tokens(B, S, seed=1), tokens(B, S, seed=2)
    PIECES = (slice(0, 6), slice(6, None))
    SEGMENTS = np.sort(np.random.default_rng(0).integers(3, size=(2, B, S)))
    MASKS = (
        np.arange(S) < LENGTHS[:, None, None],
        SEGMENTS[0][:, :, None] == SEGMENTS[1][:, None],
        np.tri(S, dtype=bool),
        np.tri(S, k=-3, dtype=bool),  # nothing for three queries
    )

    def test_cached_decoding_equals_full_pass(self):
        """Compile once: masks are arrays."""
        sizes = {"encoder_layers": 1, "decoder_layers": 2}
        model = small_translator(positions="relative", tie="none", **sizes)
        encoded = jitted(lambda model: model.encode(self.SOURCE).features)(model)

        @jitted
        def both(model, allowed):
            mask = masks.from_array(allowed)
            fields = {"encoder_mask": mask, "returning": ("logsumexp", "hidden_states")}
            whole = model.decode(self.TARGET, encoded, **fields)
            cache, pieces = model.new_cache((B,), S, encoder_output=encoded), []
            for piece in self.PIECES:
                output = model.decode(self.TARGET[:, piece], None, cache=cache, **fields)
                cache = output.cache
                pieces.append(output._replace(cache=None))
            return whole, pieces

        for mask in self.MASKS:
            whole, pieces = both(model, np.broadcast_to(mask, (B, S, S))[:, None])
            assert_close(np.concatenate([each.features for each in pieces], 1), whole.features)
            assert len(whole.attention) == len(pieces[0].attention) == 2
            for layer, attention in enumerate(whole.attention):
                for name, results in attention.items():
                    found = [each.attention[layer][name]["logsumexp"] for each in pieces]
                    assert_close(np.concatenate(found, axis=-1), results["logsumexp"])
                found = [each.hidden_states[layer + 1] for each in pieces]
                assert_close(np.concatenate(found, axis=1), whole.hidden_states[layer + 1])

    def test_encoder_positions_are_kept_in_the_cache(self):
        module = small_attention(CrossAttention)
        inputs, source = draw((B, 2, D), (B, S, D))
        positions, queries = np.arange(S, 0, -1), np.array([3, 4])
        spec = CacheSpec(batch=(B,), size=2, encoder_output=source, encoder_positions=positions)
        cache = module.new_cache(spec)
        for mask in (masks.causal(), masks.segments(*self.SEGMENTS)):
            fields = {"encoder_mask": mask, "positions": queries}
            full = Context(encoder_output=source, encoder_positions=positions, **fields)
            cached = Context(cache=cache, **fields)
            ours, expected = (run(module, inputs, each).features for each in (cached, full))
            assert_close(ours, expected)

    def test_a_step_projects_and_checks_new_tokens_only(self):
        """No array of a step has the shape of the encoder output, to be projected or checked."""
        model = small_translator(decoder_layers=1)
        cache = model.new_cache((B,), 17, encoder_output=jnp.zeros((B, S, D)))
        program = str(jax.make_jaxpr(lambda: model.decode(self.TARGET[:, :1], None, cache=cache))())
        assert f"[{B},{S},{D}]" not in program
        checks = [line for line in program.splitlines() if "is_finite" in line]
        assert checks
        assert not [line for line in checks if f",{S}," in line or ",17," in line]

    def test_rows_past_the_end_give_nan(self):
        model = small_translator(decoder_layers=1)

        @jitted
        def decode(cache, target, lengths):
            output = model.decode(target, None, cache=cache, lengths=lengths)
            return output.features, output.cache

        cache = model.new_cache((B,), 2, encoder_output=jnp.zeros((B, S, D)))
        _, cache = decode(cache, self.TARGET[:, :1], np.array([0, 1, 0]))
        for overflowed in ([0, 0, 0], [0, 1, 0], [1, 1, 1]):
            features, cache = decode(cache, self.TARGET[:, :1], np.ones(B, np.int32))
            np.testing.assert_array_equal(np.isnan(features).any((1, 2)), overflowed)


def read(number=1, *, batch=B, size=7, made_by=None, **options):
    """Read so many tokens with a new cache, made by another model if one is given."""
    model = language_model(decoder_layers=2)
    cache = (made_by or model).new_cache((batch,), size)
    return model(TOKENS[:, :number], cache=cache, **options)


def decode_with_a_second_encoder_output():
    model, source = small_translator(decoder_layers=1), jnp.zeros((B, S, D))
    cache = model.new_cache((B,), 7, encoder_output=source)
    return model.decode(TOKENS[:, :1], source, cache=cache)


ERRORS = {
    "give none beside it": decode_with_a_second_encoder_output,
    r"as many rows as columns, got shape \(3, 7\)": lambda: read(3, mask=np.ones((3, 7), bool)),
    "a cache counts the positions of its tok": lambda: read(positions=np.arange(1)),
    "layer 0: a cache of 7 slots cannot hold 8 tokens": lambda: read(8),
    "a cache of 24 tokens is longer than max_len": lambda: read(size=24),
    "the positions end at max_length=23": lambda: language_model(positions="learned").new_cache(
        (B,), 7, ring=True
    ),
    "^2 layers need a tuple of as many caches, got 3": lambda: read(
        made_by=language_model(decoder_layers=3)
    ),
    r"^layer 0: this cache needs keys of shape \(3, 1, 1, 4\), got \(3": lambda: read(
        made_by=language_model(decoder_layers=2, num_kv_heads=1)
    ),
    r"for a batch of shape \(2,\), got \(3,\)": lambda: read(batch=2),
    "needs a cache made by new_cache of this model, got a tuple": lambda: language_model()(
        TOKENS[:, :1], cache=()
    ),
}


@pytest.mark.parametrize("words", ERRORS)
def test_errors_before_compilation(words):
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(ERRORS[words])

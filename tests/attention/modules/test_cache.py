"""Decoding with a cache equals one full pass, for every mask and position encoding."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from attention import masks, rotary
from attention.modules import Attention, LanguageModel
from attention.modules.positions import SCHEMES
from attention.primitives.cache import empty_cache
from tests.attention.modules.inputs import (
    DIMS,
    LENGTHS,
    filled,
    small_config,
    small_translator,
    tokens,
)
from tests.attention.primitives.inputs import draw

B, S, D, N, K, H, V = DIMS["BSDNKHV"]
LAYERS = 2
FIRST, SECOND, STEPS = 5, 3, 5
LONGEST = FIRST + SECOND + STEPS
TOKENS = tokens(B, LONGEST)

# Who may attend to whom; each knows the keys of its prefix when the first piece is read.
MASKS = {
    "causal": masks.causal(),
    "window": masks.causal() & masks.window(before=3),
    "prefix": masks.prefix(2),
    "block": masks.causal() & masks.block(4),
    "segments": masks.causal() & masks.segments([1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3]),
    "sees nothing": masks.causal() & ~masks.window(before=2),
}
# How many tokens of each row come with the first piece and with the second.
RAGGED = [([5, 5, 5], [3, 3, 3]), ([2, 5, 3], [3, 0, 1]), ([4, 2, 5], [0, 2, 3])]

# Each scheme of positions with a grouping and a kind of norm.
MODELS = {
    "none": {"num_kv_heads": N, "qk_norm": "layer"},
    "sinusoidal": {"num_kv_heads": 1, "norm": "post"},
    "learned": {"num_kv_heads": K, "norm_kind": "rms"},
    "rotary": {"num_kv_heads": K, "qk_norm": "rms", "rotary": {"base": 100.0}},
    "alibi": {"num_kv_heads": 1},
    "relative": {"num_kv_heads": N},
}


def language_model(**changes):
    config = small_config(**changes)
    return filled(lambda: LanguageModel(config, vocab_size=V, rngs=nnx.Rngs(0)))


def in_pieces(model, allowed, first, second, cache):
    """Logits `[B, T, V]` of two pieces and then one token at a time; NaN for what was not read."""
    mask = None if allowed is None else masks.from_array(allowed)
    rows = jnp.arange(B)[:, None]

    def read(carry, num_tokens, lengths=None):
        cache, logits = carry
        positions = cache[0].next_positions(num_tokens)
        piece = TOKENS.at[rows, positions].get(mode="clip")
        found, after = model(piece, cache=cache, mask=mask, lengths=lengths)
        read = positions < after[0].lengths[:, None]
        places = jnp.where(read, positions, LONGEST)
        return after, logits.at[rows, places].set(found, mode="drop")

    carry = cache, jnp.full((B, LONGEST, V), jnp.nan)
    carry = read(carry, FIRST, first)
    carry = read(carry, SECOND, second)
    (cache, logits), _ = jax.lax.scan(
        lambda carry, _: (read(carry, 1), None), carry, None, length=STEPS
    )
    return logits, cache


def assert_same_as_at_once(model, ring, cases, full_mask):
    """Compiles once: masks are tables of who sees whom, and lengths are traced."""

    @jax.jit
    def both(model, allowed, full, first, second):
        size = ring or LONGEST
        cache = model.new_cache((B,), size, ring=bool(ring))
        pieces, cache = in_pieces(model, allowed, first, second, cache)
        return pieces, model(TOKENS, mask=masks.from_array(full)), cache[0].lengths

    places = jnp.arange(LONGEST)
    for mask in cases:
        allowed, full = (m(places[:, None], places[None]) for m in (mask, full_mask(mask)))
        for first, second in RAGGED:
            pieces, whole, read = both(model, allowed, full, jnp.array(first), jnp.array(second))
            np.testing.assert_array_equal(read, np.add(first, second) + STEPS)
            for row in range(B):
                np.testing.assert_allclose(
                    pieces[row, : read[row]], whole[row, : read[row]], rtol=2e-5, atol=2e-5
                )


@pytest.mark.parametrize("kind", SCHEMES)
def test_cached_decoding_equals_full_pass(kind):
    model = language_model(positions=kind, decoder_layers=LAYERS, **MODELS[kind])
    assert_same_as_at_once(model, None, MASKS.values(), lambda mask: mask)


@pytest.mark.parametrize("kind", ["rotary", "relative"])
def test_ring_equals_window(kind):
    model = language_model(positions=kind, decoder_layers=LAYERS)
    cases = [masks.causal(), masks.causal() & masks.block(4)]
    assert_same_as_at_once(model, 4, cases, lambda mask: mask & masks.window(before=3))


def small_attention():
    sizes = {"num_heads": N, "num_kv_heads": K, "head_width": H}
    return filled(lambda: Attention(D, **sizes, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("ring", [False, True], ids=["growing", "ring"])
def test_visible_nan_in_a_cache_gives_nan(ring):
    """The second token of the first row is NaN; a ring of four slots replaces it."""
    attention = small_attention()
    (inputs,) = draw((2, 7, D))
    inputs, outputs = inputs.at[0, 1].set(jnp.nan), []
    cache = empty_cache((2,), 4 if ring else 7, num_kv_heads=K, head_width=H, ring=ring)
    for token in jnp.split(inputs, 7, axis=1):
        output, _, cache = attention(token, cache=cache, mask=masks.causal())
        outputs.append(output)
    lost = np.zeros((2, 7), bool)
    lost[0, 1 : 5 if ring else 7] = True
    found = jnp.concatenate(outputs, axis=1)
    np.testing.assert_array_equal(jnp.isnan(found), np.broadcast_to(lost[..., None], found.shape))


def test_visible_nan_in_cross_attention_keys_gives_nan():
    attention = small_attention()
    inputs, memory = draw((2, 3, D), (2, S, D))
    memory = memory.at[0, 1].set(jnp.nan)
    for known in (memory, attention.remember(memory)):
        output, _ = attention(inputs, known)
        np.testing.assert_array_equal(jnp.isnan(output).all((1, 2)), [True, False])
        output, _ = attention(inputs, known, mask=masks.lengths([1, 1]))
        assert jnp.isfinite(output).all()


LEAVES = st.one_of(
    st.builds(masks.window, st.integers(0, 5)),
    st.builds(masks.lengths, st.integers(0, 7)),
    st.builds(masks.block, st.integers(1, 4)),
    st.builds(masks.segments, st.lists(st.integers(0, 2), min_size=7, max_size=7).map(sorted)),
    st.just(masks.from_function(lambda query, key: (query * key) % 3 == 0)),
)


# Each example compiles, so there are few, and a failing one is not made smaller.
@settings(max_examples=5, phases=[Phase.generate])
@given(
    kind=st.sampled_from(sorted(SCHEMES)),
    num_kv_heads=st.sampled_from([1, K, N]),
    mask=st.builds(lambda a, b, c: (a & b) | ~c, LEAVES, LEAVES, LEAVES),
    lengths=st.lists(st.integers(0, 4), min_size=B, max_size=B),
    ring=st.booleans(),
)
def test_whatever_is_drawn(kind, num_kv_heads, mask, lengths, ring):
    """Masks as they are composed, read by a cache that may be a ring where positions go on."""
    ring = ring and kind != "learned"
    model = language_model(positions=kind, num_kv_heads=num_kv_heads, decoder_layers=1)
    mask = masks.causal() & mask
    size = 5 if ring else 7

    @jax.jit
    def both(model, lengths):
        cache = model.new_cache((B,), size, ring=ring)
        logits, cache = model(TOKENS[:, :4], mask=mask, cache=cache, lengths=lengths)
        pieces = [(logits, jnp.arange(4)[None] < lengths[:, None])]
        text = jnp.where(pieces[0][1], TOKENS[:, :4], 0)
        text = jnp.concatenate([text, jnp.zeros((B, 3), text.dtype)], axis=1)
        steps = []
        for step in range(3):
            token = TOKENS[:, 4 + step]
            text = text.at[jnp.arange(B), lengths + step].set(token)
            logits, cache = model(token[:, None], mask=mask, cache=cache)
            steps.append(logits[:, 0])
        seen = mask & masks.window(before=size - 1) if ring else mask
        return pieces[0], jnp.stack(steps, 1), model(text, mask=seen)

    (first, read), steps, whole = both(model, jnp.array(lengths))
    np.testing.assert_allclose(first[read], whole[:, :4][read], rtol=2e-5, atol=2e-5)
    for row, length in enumerate(lengths):
        expected = whole[row, length : length + 3]
        np.testing.assert_allclose(steps[row], expected, rtol=2e-5, atol=2e-5)


def test_one_attention_with_masks_for_a_batch():
    module = filled(lambda: Attention(D, num_heads=N, head_width=H, turn=rotary, rngs=nnx.Rngs(0)))
    (inputs,) = draw((B, LONGEST, D))
    segments = np.sort(np.random.default_rng(0).integers(4, size=(B, LONGEST)))
    run = jax.jit(module)
    for mask in (masks.segments(segments), masks.lengths([3, 9, LONGEST])):
        mask &= masks.causal()
        full, _ = run(inputs, mask=mask)
        cache = empty_cache((B,), LONGEST, num_kv_heads=N, head_width=H)
        for piece in (slice(0, 6), slice(6, 7), slice(7, 13)):
            ours, _, cache = run(inputs[:, piece], mask=mask, cache=cache)
            np.testing.assert_allclose(ours, full[:, piece], rtol=2e-5, atol=2e-5)


class TestTranslator:
    """A decoder with a memory, whose keys and values are computed once."""

    SOURCE, TARGET = tokens(B, S, seed=1), tokens(B, FIRST + 2, seed=2)
    MASK = masks.lengths(LENGTHS)

    def test_cached_decoding_equals_full_pass(self):
        model = small_translator(positions="relative", tie="none")

        @jax.jit
        def at_once(model):
            memory = model.encode(self.SOURCE, mask=self.MASK)
            return model.decode(
                self.TARGET, memory, memory_mask=self.MASK, returning=("logsumexp",)
            )

        @jax.jit
        def in_pieces(model):
            memory = model.remember(model.encode(self.SOURCE, mask=self.MASK))
            cache, found = model.new_cache((B,), FIRST + 2), []
            for piece in (slice(0, FIRST), slice(FIRST, FIRST + 1), slice(FIRST + 1, None)):
                features, extras, cache = model.decode(
                    self.TARGET[:, piece],
                    memory,
                    memory_mask=self.MASK,
                    cache=cache,
                    returning=("logsumexp",),
                )
                found.append((features, extras))
            return found

        features, extras = at_once(model)
        pieces, found = zip(*in_pieces(model), strict=True)
        np.testing.assert_allclose(jnp.concatenate(pieces, axis=1), features, rtol=2e-5, atol=2e-5)
        for name in ("self", "cross"):
            together = jnp.concatenate([each[name]["logsumexp"] for each in found], axis=-1)
            np.testing.assert_allclose(together, extras[name]["logsumexp"], rtol=2e-5, atol=2e-5)

    def test_the_memory_is_projected_once_for_all_layers(self):
        model = small_translator()
        (memory,) = draw((B, S, D))
        remembered = model.remember(memory)
        for number in range(model.decoder.num_layers):
            block = jax.tree.map(lambda x, number=number: x[number], model.decoder.layers)
            layer = remembered[number]
            for name in ("key", "value"):
                projected = getattr(block.cross_attention, name)(memory)
                np.testing.assert_allclose(getattr(layer, name), projected, rtol=1e-5, atol=1e-5)
        cache = model.new_cache((B,), 7)
        step = functools.partial(model.decode, self.TARGET[:, :1], memory_mask=None, cache=cache)
        sources = [
            str(jax.make_jaxpr(step)(given)).count(f"[{B},{S},{D}]")
            for given in (memory, remembered)
        ]
        assert sources[0] > 0 == sources[1]  # no array of the memory's shape is left to project

    def test_rows_past_the_end_give_nan(self):
        model = small_translator(decoder_layers=1)

        @jax.jit
        def decode(cache, target):
            memory = jnp.zeros((B, S, D))
            features, _, cache = model.decode(target, memory, memory_mask=None, cache=cache)
            return features, cache

        (cache,) = model.new_cache((B,), 2)
        cache = (cache.advance(1, jnp.array([0, 1, 0])),)
        for overflowed in ([0, 0, 0], [0, 1, 0], [1, 1, 1]):
            features, cache = decode(cache, self.TARGET[:, :1])
            np.testing.assert_array_equal(np.isnan(features).any((1, 2)), overflowed)


class TestShapes:
    """What a cache holds, read off without a byte of it."""

    def test_grouped_queries_make_it_smaller_by_the_size_of_a_group(self):
        def cache(num_kv_heads):
            model = language_model(num_kv_heads=num_kv_heads, decoder_layers=LAYERS)
            return model.new_cache((B,), 11)

        caches = {k: jax.eval_shape(functools.partial(cache, k)) for k in (N, K, 1)}
        for num_kv_heads, layers in caches.items():
            assert len(layers) == LAYERS
            for each, whole in zip(layers, caches[N], strict=True):
                chex.assert_shape([each.key_slots, each.value_slots], (B, num_kv_heads, 11, H))
                assert each.nbytes * N == whole.nbytes * num_kv_heads
                assert whole.nbytes == B * 11 * N * 2 * H * 4

    def test_a_ring_holds_its_window_however_much_is_read(self):
        model = jax.eval_shape(lambda: language_model(decoder_layers=LAYERS))

        def read(model):
            cache = model.new_cache((2, B), 5, ring=True)
            return model(tokens(2, B, 23), cache=cache)

        logits, cache = jax.eval_shape(read, model)
        chex.assert_shape(logits, (2, B, 23, V))
        chex.assert_shape([each.key_slots for each in cache], (2, B, K, 5, H))
        assert len(cache) == LAYERS


class TestRefusals:
    """One sentence, before anything is compiled."""

    INPUTS = draw((B, 5, D))[0]

    def attention(self):
        return filled(lambda: Attention(D, num_heads=N, head_width=H, rngs=nnx.Rngs(0)))

    def test_a_cache_knows_keys_and_positions(self):
        cache = empty_cache((B,), 7, num_kv_heads=N, head_width=H)
        positions = jnp.arange(5), jnp.arange(5)
        for beside in ({"memory": self.INPUTS}, {"positions": positions}):
            with pytest.raises(ValueError, match="takes neither memory nor positions beside it"):
                self.attention()(self.INPUTS, cache=cache, **beside)

    def test_lengths_without_a_cache(self):
        with pytest.raises(ValueError, match="no cache is given"):
            self.attention()(self.INPUTS, lengths=jnp.array([1, 2, 3]))
        with pytest.raises(ValueError, match="no cache is given"):
            model = jax.eval_shape(language_model)
            jax.eval_shape(lambda m: m(tokens(B, 5), lengths=jnp.array([1, 2, 3])), model)

    def test_a_mask_without_positions(self):
        cache = empty_cache((B,), 7, num_kv_heads=N, head_width=H)
        with pytest.raises(TypeError, match=r"wrap a bool array in masks\.from_array"):
            self.attention()(self.INPUTS, cache=cache, mask=jnp.ones((5, 5), bool))

    def test_more_than_the_cache_or_the_model_holds(self):
        model = language_model(decoder_layers=1)
        (cache,) = model.new_cache((B,), 7)
        cache = (cache.advance(3),)
        with pytest.raises(ValueError, match="a cache of 7 slots cannot hold 8 tokens"):
            model(tokens(B, 5), cache=cache)
        with pytest.raises(ValueError, match="24 tokens is longer than max_length=23"):
            model.new_cache((B,), 24)
        translator = jax.eval_shape(small_translator)
        with pytest.raises(ValueError, match="24 tokens is longer than max_length=23"):
            translator.new_cache((B,), 24)

    def test_a_decoder_without_layers(self):
        translator = small_translator(decoder_layers=0)
        for remember in (
            lambda: translator.remember(jnp.ones((B, S, 8))),
            lambda: translator.new_cache((B,), 7),
        ):
            with pytest.raises(ValueError, match="a decoder without layers has nothing to"):
                remember()

    def test_caches_of_another_decoder(self):
        model = jax.eval_shape(lambda: language_model(decoder_layers=LAYERS))
        cache = jax.eval_shape(lambda model: model.new_cache((B,), 7), model)
        wanted = f"a decoder of {LAYERS} layers needs a tuple of as many caches"
        for wrong, number in ((cache[:-1], LAYERS - 1), (cache * 2, 2 * LAYERS)):
            with pytest.raises(ValueError, match=f"{wanted}, got {number}"):
                model(tokens(B, 1), cache=wrong)
        with pytest.raises(ValueError, match=f"{wanted}, got a single one"):
            model(tokens(B, 1), cache=cache[0])

    def test_memories_of_another_decoder(self):
        model = small_translator(decoder_layers=LAYERS)
        known = model.remember(jnp.zeros((B, S, D)))
        wanted = f"a decoder of {LAYERS} layers needs a tuple of as many caches"
        for wrong, number in (
            (known[:-1], LAYERS - 1),
            (known * 2, 2 * LAYERS),
            (known[0], "a single one"),
            ([*known], LAYERS),
        ):
            with pytest.raises(ValueError, match=f"{wanted}, got {number}"):
                model.decode(tokens(B, 1), wrong, memory_mask=None)

    def test_step_checks_only_new_tokens(self):
        """No check for finite numbers has the length of the cache or of the encoder output."""
        model = small_translator(decoder_layers=1)
        known, cache = model.remember(jnp.zeros((B, S, D))), model.new_cache((B,), 17)
        step = jax.make_jaxpr(
            lambda: model.decode(tokens(B, 1), known, memory_mask=None, cache=cache)
        )
        looks = [line for line in str(step()).splitlines() if "is_finite" in line]
        assert looks and not [line for line in looks if f",{S}," in line or ",17," in line]

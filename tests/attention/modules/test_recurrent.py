"""The recurrent encoder-decoder: its equations, its padding, its memory of what it said."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import masks
from attention.decoding import Rules, beam_search, cached, greedy, prefill
from attention.modules import RecurrentConfig, RecurrentEncoderDecoder
from attention.modules.recurrent import Memory
from attention.testing import find_leaks
from tests.attention.modules.inputs import DIMS, LENGTHS, B, S, T, filled, tokens
from tests.attention.primitives.inputs import draw

D, F, V = DIMS["DFV"]
SOURCE, TARGET = tokens(B, S, seed=1), tokens(B, T, seed=2)
SOURCE_MASK = masks.lengths(LENGTHS)
PADDING = np.arange(S) >= LENGTHS[:, None]
# Between them they have every cell and every attention.
MODELS = {
    "additive": {"attention": "additive", "cell": "gru"},
    "multiplicative": {"attention": "multiplicative", "cell": "lstm"},
    "none": {"attention": "none", "cell": "gru"},
}
every_model = pytest.mark.parametrize("kind", MODELS)


@functools.cache
def small(kind, seed=0, **changes):
    given = {"embedding_width": D, "hidden": F, "max_length": 23} | MODELS[kind] | changes
    return filled(lambda: build(given), seed)


def build(given):
    config = RecurrentConfig(**given)
    sizes = {"source_vocab_size": DIMS["v"][0], "target_vocab_size": V}
    return RecurrentEncoderDecoder(config, **sizes, rngs=nnx.Rngs(0))


@jax.jit
def translate(model, source, target, lengths, key=None):
    mask = masks.lengths(lengths)
    return model(source, target, source_mask=mask, memory_mask=mask, key=key)


def assert_close(ours, theirs, tolerance=2e-5):
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


# The equations, in float64, for one sentence at a time and without a thought of padding.


def double(parameter):
    return np.asarray(parameter[...], np.float64)


def linear(layer, inputs):
    bias = 0 if layer.bias is None else double(layer.bias)
    return inputs @ double(layer.kernel) + bias


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(cell, carry, inputs):
    read, kept = (
        np.split(linear(*pair), 3) for pair in ((cell.dense_i, inputs), (cell.dense_h, carry))
    )
    reset, update = (sigmoid(a + b) for a, b in zip(read[:2], kept[:2], strict=True))
    new = np.tanh(read[2] + reset * kept[2])
    return (1 - update) * new + update * carry


def lstm(cell, carry, inputs):
    memory, output = carry
    gates = np.split(linear(cell.dense_i, inputs) + linear(cell.dense_h, output), 4)
    let_in, forget, new, let_out = (
        f(x) for f, x in zip((sigmoid, sigmoid, np.tanh, sigmoid), gates, strict=True)
    )
    memory = forget * memory + let_in * new
    return memory, let_out * np.tanh(memory)


def equations(model, kind, source, target):
    """Logits `[T, V]` and weights `[T, S]`."""
    step = {"gru": gru, "lstm": lstm}[MODELS[kind]["cell"]]
    begin = (lambda x: x) if step is gru else (lambda x: (x, x))
    output = (lambda x: x) if step is gru else (lambda x: x[1])

    def embed(embedding, words):
        return double(embedding.tokens)[np.asarray(words)] * np.sqrt(D)

    def read(cell, vectors):
        carry, states = begin(np.zeros(F)), []
        for vector in vectors:
            carry = step(cell, carry, vector)
            states.append(output(carry))
        return states

    vectors = embed(model.source_embedding, source)
    there = read(model.encoder.forwards, vectors)
    back = read(model.encoder.backwards, vectors[::-1])[::-1]
    annotations = np.concatenate([there, back], axis=1)
    summary = np.tanh(linear(model.encoder.summary, np.concatenate([there[-1], back[0]])))
    decoder, attention = model.decoder.step, model.decoder.attention

    def look(state):
        if kind == "none":
            return summary, np.zeros(len(source))
        query = linear(attention.query, state)
        if kind == "additive":
            sums = np.tanh(query + linear(attention.key, annotations))
            scores = sums @ double(attention.vector)[0]
        else:
            scores = annotations @ query
        weights = np.exp(scores) / np.exp(scores).sum()
        return weights @ annotations, weights

    carry, fed, logits, found = begin(summary), np.zeros(F), [], []
    for vector in embed(model.target_embedding, target):
        if kind == "multiplicative":
            carry = step(decoder.cell, carry, np.concatenate([vector, fed]))
            context, weights = look(output(carry))
            fed = features = np.tanh(linear(decoder.join, np.concatenate([context, output(carry)])))
        else:
            context, weights = look(output(carry))
            carry = step(decoder.cell, carry, np.concatenate([vector, context]))
            features = np.concatenate([output(carry), vector, context])
        logits.append(linear(model.output, features))
        found.append(weights)
    return np.array(logits), np.array(found)


@functools.partial(jax.jit, static_argnames="returning")
def decode(model, returning=("weights",)):
    memory = model.encode(SOURCE, mask=SOURCE_MASK)
    features, extras = model.decode(TARGET, memory, memory_mask=SOURCE_MASK, returning=returning)
    return model.logits(features), extras


@every_model
def test_it_is_its_equations_and_padding_is_not_there(kind):
    model = small(kind)
    logits = translate(model, SOURCE, TARGET, LENGTHS)
    chex.assert_shape(logits, (B, T, V))
    if kind == "none":
        weights = np.zeros((B, T, S))
    else:
        observed, extras = decode(model)
        np.testing.assert_array_equal(observed, logits)  # asking changes nothing
        weights = extras["cross"]["weights"]
        chex.assert_shape(weights, (1, B, 1, T, S))
        weights = weights[0, :, 0]
        assert not np.where(PADDING[:, None], weights, 0).any()
    for row, length in enumerate(LENGTHS):
        expected, looks = equations(model, kind, SOURCE[row, :length], TARGET[row])
        assert_close(logits[row], expected)
        assert_close(weights[row, :, :length], looks)


def test_all_that_attention_returns_has_the_axes_of_a_transformer():
    returning = ("logsumexp", "mean_distance", "strongest")
    _, extras = jax.eval_shape(functools.partial(decode, returning=returning), small("additive"))
    one = (1, B, 1, T)
    shapes = jax.tree.map(lambda array: array.shape, extras)
    strongest = (*one, 1), (*one, 1)
    assert shapes == {"cross": {"logsumexp": one, "mean_distance": one, "strongest": strongest}}


@every_model
def test_leading_axes_are_kept(kind):
    for batch in ((), (2,), (3, 2)):
        run = functools.partial(small(kind), source_mask=None, memory_mask=None)
        logits = jax.eval_shape(run, tokens(*batch, S), tokens(*batch, T))
        chex.assert_shape(logits, (*batch, T, V))


class TestPadding:
    """What stands behind the length of a source does not exist."""

    @every_model
    def test_neither_what_it_is_nor_how_long_it_is_matters(self, kind):
        model = small(kind)
        before = translate(model, SOURCE, TARGET, LENGTHS)
        # An id outside the vocabulary is embedded as NaN: not even that is read.
        for other in (tokens(B, S, seed=3), jnp.full((B, S), 1000)):
            changed = jnp.where(PADDING, other, SOURCE)
            np.testing.assert_array_equal(translate(model, changed, TARGET, LENGTHS), before)
        longer = jnp.concatenate([SOURCE, jnp.full((B, 4), 1000)], axis=1)
        assert_close(translate(model, longer, TARGET, LENGTHS), before)

    def test_padding_may_stand_in_front(self):
        model = small("additive")

        @jax.jit
        def run(source, mask):
            return model(source, TARGET, source_mask=mask, memory_mask=mask)

        shifted = jnp.concatenate([jnp.full((B, 2), 1000), SOURCE], axis=1)
        mask = masks.lengths(LENGTHS + 2) & ~masks.lengths(2)
        assert_close(run(shifted, mask), translate(model, SOURCE, TARGET, LENGTHS))

    @every_model
    def test_an_empty_source_and_padding_of_nan_leave_the_gradient_finite(self, kind):
        lengths = np.array([S, 0, 2])
        source = jnp.where(np.arange(S) >= lengths[:, None], 1000, SOURCE)

        @jax.jit
        @jax.value_and_grad
        def loss(model):
            scores = translate(model, source, TARGET, lengths)
            return -jnp.take_along_axis(jax.nn.log_softmax(scores), TARGET[..., None], -1).mean()

        value, gradient = loss(small(kind))
        assert np.isfinite(value)
        for path, slopes in jax.tree_util.tree_leaves_with_path(gradient):
            assert np.isfinite(slopes).all()
            assert np.abs(slopes).max() > 1e-6, jax.tree_util.keystr(path)

    @every_model
    def test_no_token_sees_the_future_the_padding_or_another_row(self, kind):
        model = small(kind)
        future = find_leaks(
            lambda target: translate(model, SOURCE, target, LENGTHS),
            TARGET,
            np.tri(T, dtype=bool),
            vocab_size=V,
        )
        padding = find_leaks(
            lambda source: translate(model, source, TARGET, LENGTHS),
            SOURCE,
            np.broadcast_to(~PADDING[:, None], (B, T, S)),
            vocab_size=V,
        )
        for report in (future, padding):
            report.raise_if_failed()
            assert not report.blind_spots


class TestCache:
    """The state of a decoder, an argument and a result."""

    @every_model
    def test_pieces_say_what_the_whole_says(self, kind):
        model = small(kind)
        lengths = jnp.array([3, 0, 2])  # of the first piece; the others are read whole
        rows = jnp.arange(B)[:, None]

        @jax.jit
        def in_pieces(model, lengths):
            memory = model.remember(model.encode(SOURCE, mask=SOURCE_MASK))
            cache, logits = model.new_cache((B,), T), jnp.full((B, T + 1, V), jnp.nan)
            for size in (3, 1, 1):
                places = cache.lengths[:, None] + jnp.arange(size)[None]
                piece = TARGET.at[rows, places].get(mode="clip")
                features, _, after = model.decode(
                    piece,
                    memory,
                    memory_mask=SOURCE_MASK,
                    cache=cache,
                    lengths=lengths if size == 3 else None,
                )
                places = jnp.where(places < after.lengths[:, None], places, T)
                logits, cache = logits.at[rows, places].set(model.logits(features)), after
            return logits[:, :T], cache.lengths

        whole = translate(model, SOURCE, TARGET, LENGTHS)
        pieces, read = in_pieces(model, lengths)
        np.testing.assert_array_equal(read, lengths + 2)
        for row in range(B):
            assert_close(pieces[row, : read[row]], whole[row, : read[row]])

    def test_a_mask_may_know_the_target_position_and_a_cache_counts_it(self):
        model = small("multiplicative")
        allowed = np.random.default_rng(0).random((T, S)) < 0.5
        seen = masks.from_array(allowed)

        @jax.jit
        def both(model):
            memory = model.encode(SOURCE, mask=None)
            whole, extras = model.decode(TARGET, memory, memory_mask=seen, returning=("weights",))
            cache, pieces = model.new_cache((B,), T), []
            for piece in (slice(0, 3), slice(3, T)):
                found, _, cache = model.decode(
                    TARGET[:, piece], memory, memory_mask=seen, cache=cache
                )
                pieces.append(found)
            return whole, jnp.concatenate(pieces, axis=1), extras["cross"]["weights"]

        whole, pieces, weights = both(model)
        assert_close(pieces, whole)
        np.testing.assert_array_equal(weights[0, :, 0] > 0, np.broadcast_to(allowed, (B, T, S)))

    def test_greedy_and_beam_search_say_of_a_batch_what_they_say_of_each_row(self):
        model = small("additive")
        rules = Rules(end=15, pad=0, max_length=6)  # a word that these parameters like to say

        @jax.jit
        def say(model, source, lengths, prompts):
            mask = masks.lengths(lengths)
            memory = model.remember(model.encode(source, mask=mask))

            def read(target, cache, lengths=None):
                features, _, cache = model.decode(
                    target, memory, memory_mask=mask, cache=cache, lengths=lengths
                )
                return model.logits(features), cache

            begun = prefill(read, model.new_cache((B,), 10), TARGET, prompts)
            found = beam_search(cached(read), *begun, rules, beam=1)
            return greedy(cached(read), *begun, rules).tokens, found.tokens[:, 0]

        prompts = jnp.array([2, 1, 4])
        said, beamed = say(model, SOURCE, LENGTHS, prompts)
        np.testing.assert_array_equal(beamed, said)
        for row in range(B):
            alone = jnp.broadcast_to(SOURCE[row], (B, S)), jnp.full(B, LENGTHS[row])
            once, _ = say(model, *alone, prompts)
            np.testing.assert_array_equal(once[row], said[row])
        assert len({*np.ravel(said).tolist()}) > 3
        assert (said == rules.end).any()

    def test_the_memory_is_projected_once(self):
        model = small("additive")
        (annotations,) = draw((B, S, 2 * F))
        memory = Memory(annotations, annotations[:, 0, :F])
        remembered = model.remember(memory)
        assert_close(remembered.key, model.decoder.attention.key(annotations))
        assert model.remember(remembered) is remembered
        assert small("none").remember(memory) is memory


def test_the_key_drops_embeddings_of_both_sides():
    model = small("additive", dropout=0.3)
    plain = translate(model, SOURCE, TARGET, LENGTHS)
    np.testing.assert_array_equal(plain, translate(small("additive"), SOURCE, TARGET, LENGTHS))
    first, again, other = (
        translate(model, SOURCE, TARGET, LENGTHS, jax.random.key(seed)) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, plain, atol=1e-2)
    assert not np.allclose(first, other, atol=1e-2)

    @jax.jit
    def sides(model, key):
        memory = model.encode(SOURCE, mask=SOURCE_MASK)
        dropped = model.encode(SOURCE, mask=SOURCE_MASK, key=key)
        features = [
            model.decode(TARGET, memory, memory_mask=SOURCE_MASK, key=k)[0] for k in (None, key)
        ]
        return (memory.annotations, dropped.annotations), features

    for before, after in sides(model, jax.random.key(0)):
        assert not np.allclose(before, after, atol=1e-2)


CHANGES = {"embedding_width": 5, "hidden": 7, "cell": "lstm", "attention": "none"}


class TestConfig:
    """No knob is connected to nothing, and no sentence is left unsaid."""

    @pytest.mark.parametrize("field", CHANGES)
    def test_every_field_changes_the_parameters(self, field):
        given = {"embedding_width": D, "hidden": F}
        before, after = (
            jax.tree.map(lambda x: x.shape, jax.eval_shape(functools.partial(build, each)))
            for each in (given, given | {field: CHANGES[field]})
        )
        assert str(before) != str(after)

    def test_these_are_all_but_those_that_are_tried_elsewhere(self):
        fields = {field.name for field in dataclasses.fields(RecurrentConfig)}
        assert fields == {*CHANGES, "max_length", "dropout"}

    @pytest.mark.parametrize(
        "changes, sentence",
        [
            ({"embedding_width": 0}, "embedding_width must be at least 1, got 0"),
            ({"hidden": -1}, "hidden must be at least 1, got -1"),
            ({"max_length": 0}, "max_length must be at least 1, got 0"),
            ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
            ({"cell": "gro"}, "cell must be one of gru, lstm, got 'gro'; did you mean 'gru'[?]"),
            (
                {"attention": "adaptive"},
                "attention must be one of additive, multiplicative, none, got 'adaptive'; "
                "did you mean 'additive'[?]",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused_in_one_sentence(self, changes, sentence):
        with pytest.raises(ValueError, match=f"^{sentence}"):
            RecurrentConfig(**changes)

    def test_the_published_size(self):
        """bentrevett/pytorch-seq2seq counts 20,518,917; its GRUs have a second bias of 3·F each."""
        config = RecurrentConfig(embedding_width=256, hidden=512, attention="additive")
        sizes = {"source_vocab_size": 7855, "target_vocab_size": 5893}
        model = jax.eval_shape(lambda: RecurrentEncoderDecoder(config, **sizes, rngs=nnx.Rngs(0)))
        total = sum(parameter.size for parameter in jax.tree.leaves(model))
        assert total == 20_518_917 - 3 * (3 * 512)


class TestRefusals:
    """One sentence, before anything is compiled."""

    @pytest.mark.parametrize(
        "mask",
        [
            masks.causal() & SOURCE_MASK,
            ~masks.from_array(np.ones((S, S), bool)),
            masks.segments([0] * S),
            np.ones((S, S), bool),
        ],
        ids=["causal", "array", "segments", "no mask"],
    )
    def test_a_source_mask_that_depends_on_the_query(self, mask):
        with pytest.raises(ValueError, match="this mask depends on the position of the query"):
            small("none").encode(SOURCE, mask=mask)

    def test_a_source_mask_for_another_batch(self):
        with pytest.raises(ValueError, match=r"mask has the leading axes \(2,\)"):
            small("none").encode(SOURCE, mask=masks.lengths([1, 2]))

    @pytest.mark.parametrize(
        "given, error, sentence",
        [
            ({"mask": masks.causal()}, ValueError, "no mask can hide it"),
            ({"lengths": jnp.array([1, 1, 1])}, ValueError, "and no cache is given"),
            ({"returning": ("weights",)}, ValueError, '"none" has no weights to return'),
            ({"cache": 7, "lengths": jnp.ones(B)}, TypeError, "lengths must be integers"),
            (
                {"cache": 7, "lengths": jnp.array([0, 6, 1])},
                ValueError,
                "must lie in 0 to 5 tokens",
            ),
        ],
        ids=["mask", "lengths", "weights", "floats", "too many"],
    )
    def test_what_a_decoder_cannot_do(self, given, error, sentence):
        model = small("none")
        if "cache" in given:
            given = given | {"cache": model.new_cache((B,), given["cache"])}
        memory = Memory(*draw((B, S, 2 * F), (B, F)))
        with pytest.raises(error, match=sentence):
            model.decode(TARGET, memory, memory_mask=None, **given)

    def test_longer_than_the_model_allows(self):
        model = small("none")
        with pytest.raises(ValueError, match="24 tokens is longer than max_length=23"):
            model.encode(tokens(B, 24), mask=None)
        with pytest.raises(ValueError, match="24 tokens is longer than max_length=23"):
            model.new_cache((B,), 24)

"""What a model may not see it does not depend on; and a model that does is told exactly where."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import attend, masks, rotary
from attention.modules import Attention, Decoder, Encoder, LanguageModel
from attention.testing import BlindSpot, find_leaks
from tests.attention.modules.inputs import filled, small_config, small_translator, tokens

B, T = 2, 5
CAUSAL = np.tril(np.ones((T, T), bool))
SEGMENTS = np.array([[0, 0, 0, 1, 1], [2, 3, 3, 3, 3]])
PACKED = SEGMENTS[:, :, None] == SEGMENTS[:, None, :]
LENGTHS = np.array([3, 5])
REAL = np.arange(T) < LENGTHS[:, None]
# A padded position sees what stands before its padding, and itself along the residual.
UNPADDED = np.broadcast_to(REAL[:, None], (B, T, T)) | np.eye(T, dtype=bool)


def drawn(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


@functools.cache
def encoder():
    return filled(lambda: Encoder(small_config(), rngs=nnx.Rngs(0)))


@functools.cache
def decoder():
    config = small_config(positions="rotary")
    return filled(lambda: Decoder(config, cross=False, rngs=nnx.Rngs(0)))


# Every shipped model. The width is 14, as in the inputs of the modules' own tests.


@pytest.mark.parametrize(
    "mask, may_see",
    [
        (masks.causal(), CAUSAL),
        (masks.lengths(LENGTHS), np.broadcast_to(REAL[:, None], (B, T, T))),
        (masks.segments(SEGMENTS), PACKED),
        (masks.causal() & masks.segments(SEGMENTS), PACKED & CAUSAL),
    ],
    ids=["future", "padding", "neighbours", "packed future"],
)
def test_attention_sees_what_its_mask_shows_and_nothing_else(mask, may_see):
    module = filled(
        lambda: Attention(
            14, num_heads=6, num_kv_heads=3, head_width=4, turn=rotary, rngs=nnx.Rngs(0)
        )
    )

    # Queries of ones: what they see, they see as keys and values.
    def model(inputs):
        return module(jnp.ones_like(inputs), inputs, mask=mask)[0]

    report = find_leaks(model, drawn(B, T, 14), may_see, poison=True)
    report.raise_if_failed()
    assert not report.blind_spots


@pytest.mark.parametrize(
    "mask, may_see",
    [(masks.lengths(LENGTHS), UNPADDED), (masks.segments(SEGMENTS), PACKED)],
    ids=["padding", "neighbours"],
)
def test_the_encoder_sees_neither_padding_nor_neighbours(mask, may_see):
    model = functools.partial(encoder(), mask=mask)
    report = find_leaks(lambda inputs: model(inputs)[0], drawn(B, T, 14), may_see)
    report.raise_if_failed()
    assert not report.blind_spots


@pytest.mark.parametrize(
    "mask, may_see",
    [(None, CAUSAL), (masks.causal() & masks.segments(SEGMENTS), PACKED & CAUSAL)],
    ids=["future", "packed"],
)
def test_the_decoder_does_not_see_the_future(mask, may_see):
    module = decoder()
    report = find_leaks(lambda inputs: module(inputs, mask=mask)[0], drawn(B, T, 14), may_see)
    report.raise_if_failed()
    assert not report.blind_spots


@pytest.mark.parametrize(
    "mask, may_see",
    [(None, CAUSAL), (masks.causal() & masks.segments(SEGMENTS), PACKED & CAUSAL)],
    ids=["future", "packed"],
)
def test_the_language_model_does_not_see_the_future(mask, may_see):
    model = filled(lambda: LanguageModel(small_config(), vocab_size=17, rngs=nnx.Rngs(0)))
    report = find_leaks(lambda given: model(given, mask=mask), tokens(B, T), may_see, vocab_size=17)
    report.raise_if_failed()
    assert not report.blind_spots


@pytest.fixture(scope="module")
def translator():
    return small_translator()


def test_the_translator_does_not_see_its_own_future(translator):
    visible = masks.lengths(LENGTHS)

    def model(target):
        return translator(tokens(B, T, seed=1), target, source_mask=visible, memory_mask=visible)

    report = find_leaks(model, tokens(B, T), CAUSAL, vocab_size=17)
    report.raise_if_failed()
    assert not report.blind_spots


def test_the_translator_sees_its_own_source_without_the_padding(translator):
    visible = masks.lengths(LENGTHS)

    def model(source):
        return translator(source, tokens(B, T), source_mask=visible, memory_mask=visible)

    may_see = np.broadcast_to(REAL[:, None], (B, T, T))
    report = find_leaks(model, tokens(B, T, seed=1), may_see, vocab_size=17)
    report.raise_if_failed()
    assert not report.blind_spots


# Models that leak.


def test_one_leak_is_found_where_it_is():
    def model(inputs):
        output = attend(inputs[:, :, None], inputs[:, :, None], inputs[:, :, None],
                        mask=masks.causal())[:, :, 0]  # fmt: skip
        return output.at[0, 1].add(0.1 * inputs[1, 4])

    report = find_leaks(model, drawn(B, T, 3), CAUSAL)
    assert [(leak.output, leak.input) for leak in report] == [((0, 1), (1, 4))]
    assert str(report.leaks[0]).startswith(
        "output (row 0, position 1) depends on input (row 1, position 4), "
        "which it may not see: derivative 0.1"
    )
    assert "another in its place changes it by" in report.leaks[0].evidence
    assert len(report) == 1
    assert not report.ok
    assert str(report).startswith("1 leaks, 0 blind spots\noutput (row 0, position 1) depends")
    with pytest.raises(AssertionError, match=r"\(row 0, position 1\) depends on input \(row 1"):
        report.raise_if_failed()


def test_a_leak_of_tokens_is_found_without_derivatives():
    def model(given):
        return jax.nn.one_hot(jnp.cumsum(given, axis=1) + given[:, 3:4] % 2, 50)

    report = find_leaks(model, tokens(B, T), CAUSAL, vocab_size=17, trials=6)
    assert [(leak.output, leak.input) for leak in report] == [
        ((row, t), (row, 3)) for row in range(B) for t in range(3)
    ]


def test_a_mask_too_short_by_one_leaks_the_first_of_the_padding():
    module = encoder()
    mask = masks.lengths(LENGTHS + 1)
    report = find_leaks(lambda inputs: module(inputs, mask=mask)[0], drawn(B, T, 14), UNPADDED)
    assert {(leak.output[0], leak.input) for leak in report} == {(0, (0, 3))}


def test_a_step_that_has_no_derivative_is_found_by_another_input():
    report = find_leaks(lambda inputs: jnp.sign(jnp.flip(inputs, 0)), drawn(2, 1), np.eye(2))
    assert {(leak.output, leak.input) for leak in report} == {(0, 1), (1, 0)}
    assert all("derivative" not in leak.evidence for leak in report)


def test_a_product_too_small_to_move_a_float_is_found_by_its_derivative():
    def model(inputs):
        return inputs + 1e-12 * jnp.flip(inputs, 0)

    report = find_leaks(model, 1e3 + drawn(2, 1), np.eye(2))
    assert len(report) == 2
    assert all(leak.evidence.startswith("derivative") for leak in report)


def test_multiplying_by_zero_hides_everything_but_a_nan():
    hidden = np.tril(np.ones((T, T)))

    def model(inputs):
        return jnp.asarray(hidden, jnp.float32) @ inputs

    assert find_leaks(model, drawn(T, 3), hidden).ok
    poisoned = find_leaks(model, drawn(T, 3), hidden, poison=True)
    assert (0, 1) in [(leak.output, leak.input) for leak in poisoned]
    assert "a NaN in its place" in poisoned.leaks[0].evidence


def test_what_is_hidden_too_much_is_a_blind_spot():
    def model(inputs):
        return attend(inputs[:, None], inputs[:, None], inputs[:, None],
                      mask=masks.causal() & masks.window(1))[:, 0]  # fmt: skip

    report = find_leaks(model, drawn(4, 3), np.tril(np.ones((4, 4))))
    assert report.ok
    assert report.blind_spots == (BlindSpot(2, 0), BlindSpot(3, 0), BlindSpot(3, 1))
    assert str(report.blind_spots[0]) == "output 2 may see input 0, but does not depend on it"


def test_permission_as_a_function_gets_rows_and_positions():
    def own_past(output, given):
        (row, t), (other, s) = output, given
        return row == other and s <= t

    def model(inputs):
        return jnp.cumsum(inputs, axis=1)

    assert find_leaks(model, drawn(B, 3, 2), own_past).ok
    assert len(find_leaks(model, drawn(B, 3, 2), lambda output, given: False)) == B * 6
    everything = np.zeros((B, 3, B, 3), bool)
    assert len(find_leaks(model, drawn(B, 3, 2), everything)) == B * 6


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"trials": 0}, "trials must be at least 1"), ({"vocab_size": 1}, "has no other token")],
)
def test_a_proof_that_tries_nothing_is_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        find_leaks(lambda tokens: tokens[..., None], jnp.zeros(3, jnp.int32), np.eye(3), **options)


def test_permission_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"may_see needs the shape .* got \(3, 2\)"):
        find_leaks(lambda inputs: inputs, drawn(B, 3, 2), np.ones((3, 2)))

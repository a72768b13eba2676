"""`find_leaks`: models of this library have no leaks, and leaks of wrong models are found."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import attend, masks, rotary
from attention.modules import Context, Decoder, Encoder, SelfAttention
from attention.testing import BlindSpot, find_leaks
from tests.attention.modules.inputs import (
    filled,
    language_model,
    small_config,
    small_translator,
    tokens,
)

B, T = 2, 5
CAUSAL = np.tril(np.ones((T, T), bool))
SEGMENTS = np.array([[0, 0, 0, 1, 1], [2, 3, 3, 3, 3]])
PACKED = SEGMENTS[:, :, None] == SEGMENTS[:, None, :]
LENGTHS = np.array([3, 5])
REAL = np.arange(T) < LENGTHS[:, None]
# A padded position attends to the tokens, and depends on itself through the residual.
UNPADDED = np.broadcast_to(REAL[:, None], (B, T, T)) | np.eye(T, dtype=bool)


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@functools.cache
def encoder():
    return filled(lambda: Encoder.from_config(small_config(), rngs=nnx.Rngs(0)))


@functools.cache
def decoder():
    config = small_config(positions="rotary")
    return filled(lambda: Decoder.from_config(config, cross=False, rngs=nnx.Rngs(0)))


# The models of this library. The width is 14, as in the tests of the modules.


@pytest.mark.parametrize(
    "mask, may_see",
    [
        (masks.lengths(LENGTHS), np.broadcast_to(REAL[:, None], (B, T, T))),
        (masks.causal() & masks.segments(SEGMENTS), PACKED & CAUSAL),
    ],
    ids=["padding", "packed future"],
)
def test_attention_depends_on_visible_keys_only(mask, may_see):
    module = filled(
        lambda: SelfAttention(
            14, num_heads=6, num_kv_heads=3, head_width=4, rotary=rotary, rngs=nnx.Rngs(0)
        )
    )
    # Constant queries: outputs depend on inputs through keys and values only.
    module.query = lambda inputs: jnp.ones((*inputs.shape[:-1], 6, 4))

    def model(inputs):
        return module(inputs, context=Context(mask=mask)).features

    report = find_leaks(model, drawn(B, T, 14), may_see, nonfinite=True)
    report.raise_if_failed()
    assert not report.blind_spots


@pytest.mark.parametrize(
    "mask, may_see",
    [(masks.lengths(LENGTHS), UNPADDED), (masks.segments(SEGMENTS), PACKED)],
    ids=["padding", "segments"],
)
def test_encoder_depends_on_neither_padding_nor_other_segments(mask, may_see):
    model = functools.partial(encoder(), context=Context(mask=mask))
    report = find_leaks(lambda inputs: model(inputs).features, drawn(B, T, 14), may_see)
    report.raise_if_failed()
    assert not report.blind_spots


def test_decoder_depends_on_neither_later_positions_nor_other_segments():
    model = functools.partial(decoder(), context=Context(mask=masks.segments(SEGMENTS)))
    report = find_leaks(lambda inputs: model(inputs).features, drawn(B, T, 14), PACKED & CAUSAL)
    report.raise_if_failed()
    assert not report.blind_spots


def test_language_model_does_not_depend_on_later_tokens():
    model = language_model()
    report = find_leaks(lambda given: model(given).logits, tokens(B, T), CAUSAL, vocab_size=17)
    report.raise_if_failed()
    assert not report.blind_spots


@pytest.fixture(scope="module")
def translator():
    return small_translator()


def test_translation_does_not_depend_on_later_tokens(translator):
    def model(target):
        return translator(tokens(B, T, seed=1), target, source_lengths=LENGTHS).logits

    report = find_leaks(model, tokens(B, T), CAUSAL, vocab_size=17)
    report.raise_if_failed()
    assert not report.blind_spots


def test_translation_depends_on_source_tokens_without_padding(translator):
    def model(source):
        return translator(source, tokens(B, T), source_lengths=LENGTHS).logits

    may_see = np.broadcast_to(REAL[:, None], (B, T, T))
    report = find_leaks(model, tokens(B, T, seed=1), may_see, vocab_size=17)
    report.raise_if_failed()
    assert not report.blind_spots


# Models with leaks.


def test_one_leak_is_found():
    def model(inputs):
        output = attend(inputs[:, :, None], inputs[:, :, None], inputs[:, :, None],
                        mask=masks.causal())[:, :, 0]  # fmt: skip
        return output.at[0, 1].add(0.1 * inputs[1, 4])

    report = find_leaks(model, drawn(B, T, 3), CAUSAL)
    assert [(leak.output, leak.input) for leak in report] == [((0, 1), (1, 4))]
    assert str(report.leaks[0]).startswith(
        "output (row 0, position 1) depends on input (row 1, position 4), "
        "which it must not depend on: derivative 0.1"
    )
    assert "change by another input" in report.leaks[0].evidence
    assert len(report) == 1
    assert not report.ok
    assert str(report).startswith("1 leaks, 0 blind spots\noutput (row 0, position 1) depends")
    with pytest.raises(AssertionError, match=r"\(row 0, position 1\) depends on input \(row 1"):
        report.raise_if_failed()


def test_a_leak_of_integer_tokens():
    def model(given):
        return jax.nn.one_hot(jnp.cumsum(given, axis=1) + given[:, 3:4] % 2, 50)

    report = find_leaks(model, tokens(B, T), CAUSAL, vocab_size=17, trials=6)
    assert [(leak.output, leak.input) for leak in report] == [
        ((row, t), (row, 3)) for row in range(B) for t in range(3)
    ]


def test_lengths_too_long_by_one_leak_the_first_padded_position():
    module = encoder()
    model = functools.partial(module, context=Context(mask=masks.lengths(LENGTHS + 1)))
    report = find_leaks(lambda inputs: model(inputs).features, drawn(B, T, 14), UNPADDED)
    assert {(leak.output[0], leak.input) for leak in report} == {(0, (0, 3))}


def test_a_step_function_without_derivative():
    report = find_leaks(lambda inputs: jnp.sign(jnp.flip(inputs, 0)), drawn(2, 1), np.eye(2))
    assert {(leak.output, leak.input) for leak in report} == {(0, 1), (1, 0)}
    assert all("derivative" not in leak.evidence for leak in report)


def test_a_change_below_rounding_is_found_by_its_derivative():
    def model(inputs):
        return inputs + 1e-12 * jnp.flip(inputs, 0)

    report = find_leaks(model, 1e3 + drawn(2, 1), np.eye(2))
    assert len(report) == 2
    assert all(leak.evidence.startswith("derivative") for leak in report)


def test_multiplication_by_zero_leaks_nan():
    visible = np.tril(np.ones((T, T)))

    def model(inputs):
        return jnp.asarray(visible, jnp.float32) @ inputs

    assert find_leaks(model, drawn(T, 3), visible).ok
    report = find_leaks(model, drawn(T, 3), visible, nonfinite=True)
    assert (0, 1) in [(leak.output, leak.input) for leak in report]
    assert "change by NaN" in report.leaks[0].evidence


def test_a_mask_that_hides_too_much_gives_blind_spots():
    def model(inputs):
        return attend(inputs[:, None], inputs[:, None], inputs[:, None],
                      mask=masks.causal() & masks.window(1))[:, 0]  # fmt: skip

    report = find_leaks(model, drawn(4, 3), np.tril(np.ones((4, 4))))
    assert report.ok
    assert report.blind_spots == (BlindSpot(2, 0), BlindSpot(3, 0), BlindSpot(3, 1))
    assert str(report.blind_spots[0]) == "output 2 may depend on input 0, but does not"


def test_expected_dependence_as_a_function():
    def own_past(output, given):
        (row, t), (other, s) = output, given
        return row == other and s <= t

    def model(inputs):
        return jnp.cumsum(inputs, axis=1)

    assert find_leaks(model, drawn(B, 3, 2), own_past).ok
    assert len(find_leaks(model, drawn(B, 3, 2), lambda output, given: False)) == B * 6
    everything = np.zeros((B, 3, B, 3), bool)
    assert len(find_leaks(model, drawn(B, 3, 2), everything)) == B * 6


def test_no_trial_raises():
    with pytest.raises(ValueError, match="trials must be at least 1"):
        find_leaks(lambda tokens: tokens[..., None], jnp.zeros(3, jnp.int32), np.eye(3), trials=0)


def test_expected_dependence_of_another_shape_raises():
    with pytest.raises(ValueError, match=r"may_see needs the shape .* got \(3, 2\)"):
        find_leaks(lambda inputs: inputs, drawn(B, 3, 2), np.ones((3, 2)))

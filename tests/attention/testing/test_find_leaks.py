"""`find_leaks`: models of this library have no leaks, and leaks of wrong models are found."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import attend, masks
from attention.modules import Context, Decoder, Encoder
from attention.testing import find_leaks
from tests.attention.modules.inputs import (
    filled,
    language_model,
    small_config,
    small_translator,
    tokens,
)

B, T = 2, 5
CAUSAL = np.tri(T, dtype=bool)
SEGMENTS = np.array([[0, 0, 0, 1, 1], [2, 3, 3, 3, 3]])
PACKED = SEGMENTS[:, :, None] == SEGMENTS[:, None, :]
LENGTHS = np.array([3, 5])
VISIBLE = np.broadcast_to(np.arange(T) < LENGTHS[:, None, None], (B, T, T))


def drawn(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def encoder(mask):
    module = filled(lambda: Encoder.from_config(small_config(), rngs=nnx.Rngs(0)))
    return lambda inputs: module(inputs, context=Context(mask=mask)).features


def decoder(mask):
    config = small_config(positions="rotary")
    module = filled(lambda: Decoder.from_config(config, cross=False, rngs=nnx.Rngs(0)))
    return lambda inputs: module(inputs, context=Context(mask=mask)).features


def logits_of_tokens():
    model = language_model()
    return lambda given: model(given).logits


def translator():
    model = small_translator()
    return lambda source, target: model(source, target, source_lengths=LENGTHS).logits


FEATURES, TOKENS = drawn(B, T, 14), tokens(B, T)
PADDING, OTHERS = masks.lengths(LENGTHS), masks.segments(SEGMENTS)
MODELS = {
    "encoder: padding": (lambda: encoder(PADDING), FEATURES, VISIBLE | np.eye(T, dtype=bool)),
    "encoder: segments": (lambda: encoder(OTHERS), FEATURES, PACKED),
    "decoder: packed": (lambda: decoder(OTHERS), FEATURES, PACKED & CAUSAL),
    "language model": (logits_of_tokens, TOKENS, CAUSAL),
    "translation: target": (lambda: partial(translator(), TOKENS), TOKENS, CAUSAL),
    "translation: source": (lambda: partial(translator(), target=TOKENS), TOKENS, VISIBLE),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_depend_on_visible_inputs_only(name):
    """A padded position of the encoder depends on itself, too, through the residual."""
    build, inputs, may_see = MODELS[name]
    report = find_leaks(build(), inputs, may_see, vocab_size=17)
    report.raise_if_failed()
    assert not report.blind_spots


# Models with leaks.


def one_head(inputs, mask):
    return attend(*[inputs[..., None, :]] * 3, mask=mask)[..., 0, :]


def test_one_leak_is_found():
    def model(inputs):
        return one_head(inputs, masks.causal()).at[0, 1].add(0.1 * inputs[1, 4])

    report = find_leaks(model, drawn(B, T, 3), CAUSAL)
    (leak,) = report.leaks
    assert str(leak).startswith("output (0, 1) must not depend on input (1, 4): derivative 0.1")
    assert "change by another input" in leak.evidence
    assert str(report) == f"1 leaks, 0 blind spots\n{leak}"
    with pytest.raises(AssertionError, match=r"output \(0, 1\) must not depend on input \(1, 4"):
        report.raise_if_failed()


def test_a_leak_of_integer_tokens():
    def model(given):
        return jax.nn.one_hot(jnp.cumsum(given, axis=1) + given[:, 3:4] % 2, 50)

    report = find_leaks(model, tokens(B, T), CAUSAL, vocab_size=17, trials=6)
    assert [(leak.output, leak.input) for leak in report.leaks] == [
        ((row, t), (row, 3)) for row in range(B) for t in range(3)
    ]


def test_a_step_function_without_derivative():
    report = find_leaks(lambda inputs: jnp.sign(jnp.flip(inputs, 0)), drawn(2, 1), np.eye(2))
    assert {(leak.output, leak.input) for leak in report.leaks} == {(0, 1), (1, 0)}
    assert all("derivative" not in leak.evidence for leak in report.leaks)


def test_a_change_below_rounding_is_found_by_its_derivative():
    def model(inputs):
        return inputs + 1e-12 * jnp.flip(inputs, 0)

    report = find_leaks(model, 1e3 + drawn(2, 1), np.eye(2))
    assert len(report.leaks) == 2
    assert all(leak.evidence.startswith("derivative") for leak in report.leaks)


def test_multiplication_by_zero_leaks_nan():
    visible = np.tri(T)

    def model(inputs):
        return jnp.asarray(visible, jnp.float32) @ inputs

    find_leaks(model, drawn(T, 3), visible).raise_if_failed()
    report = find_leaks(model, drawn(T, 3), visible, nonfinite=True)
    assert (0, 1) in [(leak.output, leak.input) for leak in report.leaks]
    assert "change by NaN" in report.leaks[0].evidence


def test_a_mask_that_hides_too_much_gives_blind_spots():
    mask = masks.causal() & masks.window(1)
    report = find_leaks(partial(one_head, mask=mask), drawn(4, 3), np.tri(4))
    report.raise_if_failed()
    assert report.blind_spots == ((2, 0), (3, 0), (3, 1))
    assert "\noutput 2 may depend on input 0, but does not\n" in str(report)


def test_expected_dependence_as_a_function():
    def own_past(output, given):
        (row, t), (other, s) = output, given
        return row == other and s <= t

    def model(inputs):
        return jnp.cumsum(inputs, axis=1)

    find_leaks(model, drawn(B, 3, 2), own_past).raise_if_failed()
    for nothing in (lambda output, given: False, np.zeros((B, 3, B, 3), bool)):
        assert len(find_leaks(model, drawn(B, 3, 2), nothing).leaks) == B * 6


def test_expected_dependence_of_another_shape_raises():
    with pytest.raises(ValueError, match=r"may_see has shape \(3, 2\)"):
        find_leaks(lambda inputs: inputs, drawn(B, 3, 2), np.ones((3, 2)))

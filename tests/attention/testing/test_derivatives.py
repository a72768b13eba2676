"""Mistakes in derivatives alone, each seen in its row; and the reference that judges them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend
from attention.testing import EVERYTHING, check_attention, reference
from attention.testing.check import FULL
from tests import oracle

REVERSE_ONLY = EVERYTHING - {"jvp"}
stop = jax.lax.stop_gradient


def still_key(query, key, value, **arguments):
    return attend(query, stop(key), value, **arguments)


def reverse_only(query, key, value, **arguments):
    """Right in reverse mode, once: its backward pass is a constant to any further derivative."""

    @jax.custom_vjp
    def run(*inputs):
        return attend(*inputs, **arguments)

    def forward(*inputs):
        output, pullback = jax.vjp(lambda *inputs: attend(*inputs, **arguments), *stop(inputs))
        return output, pullback

    run.defvjp(forward, lambda pullback, cotangents: pullback(cotangents))
    return run(query, key, value)


def still_logsumexp(query, key, value, **arguments):
    found = attend(query, key, value, **arguments)
    return (found[0], stop(found[1])) if "returning" in arguments else found


def gradient_of_nothing(query, key, value, mask=None, **arguments):
    """Output 0 in empty rows, and the gradient of a mean."""
    output = attend(query, key, value, mask=mask, **arguments)
    if mask is None or arguments:
        return output
    empty = ~mask.any(axis=-1)[..., None, None]
    mean = jnp.broadcast_to(value.mean(axis=(-3, -2), keepdims=True), output.shape)
    return jnp.where(empty, mean - stop(mean), output)


def cleans_values_only(query, key, value, mask=None):
    """The scores of a key that is NaN are hidden in time, but not its part of the gradients."""
    groups = query.shape[-2] // key.shape[-2]
    value = jnp.where(jnp.isfinite(value), value, 0)
    key, value = jnp.repeat(key, groups, axis=-2), jnp.repeat(value, groups, axis=-2)
    scores = query.shape[-1] ** -0.5 * jnp.einsum("BTNH,BSNH->BNTS", query, key)
    allowed = True if mask is None else mask[:, None]
    weights = jax.nn.softmax(scores, where=allowed)
    return jnp.einsum("BNTS,BSNH->BTNH", weights, value)


def still_last_tile(query, key, value, **arguments):
    last = jnp.arange(key.shape[-3])[:, None, None] >= 128
    return cleans_values_only(query, jnp.where(last, stop(key), key), value, **arguments)


def drops_forward_only(query, key, value, **arguments):
    dropped = attend(query, key, value, **arguments)
    plain = attend(query, key, value)
    return plain + stop(dropped - plain)


def forgets_axes(query, key, value):
    @jax.custom_batching.custom_vmap
    def run(query, key, value):
        return attend(query, key, value)

    @run.def_vmap
    def run_lifted(size, batched, query, key, value):
        return jnp.broadcast_to(attend(query[0], key[0], value[0]), query.shape), True

    return run(query, key, value)


def float32_inside(query, key, value):
    output = attend(*(x.astype(jnp.float32) for x in (query, key, value)))
    return output.astype(query.dtype)


def scores_backwards(query, key, value, score, **arguments):
    return attend(query, key, value, score=tuple(reversed(score)), **arguments)


FIRST_ORDER = ("values", "mask", "gradients", "gradients at unaligned lengths")
HIGHER = ("mask", "gradients", "forward mode", "second derivatives")
POISON = ("masked NaN and infinity", "gradients with masked NaN and infinity")

MISTAKES = [
    (still_key, REVERSE_ONLY, FIRST_ORDER, "gradients", "fail"),
    (still_last_tile, REVERSE_ONLY, FIRST_ORDER, "gradients at unaligned lengths", "fail"),
    (reverse_only, EVERYTHING, HIGHER, "forward mode", "error"),
    (reverse_only, REVERSE_ONLY, HIGHER, "second derivatives", "fail"),
    (
        still_logsumexp,
        REVERSE_ONLY,
        ("gradients", "logsumexp", "gradients of logsumexp"),
        "gradients of logsumexp",
        "fail",
    ),
    (
        gradient_of_nothing,
        REVERSE_ONLY,
        ("gradients", "fully masked rows", "gradients of fully masked rows"),
        "gradients of fully masked rows",
        "fail",
    ),
    (cleans_values_only, REVERSE_ONLY, ("mask", *POISON), POISON[1], "fail"),
    (
        drops_forward_only,
        REVERSE_ONLY,
        ("dropout: rate and scale", "dropout: gradients"),
        "dropout: gradients",
        "fail",
    ),
    (forgets_axes, EVERYTHING, ("values", "vmap"), "vmap", "fail"),
    (float32_inside, EVERYTHING, ("values", "float64"), "float64", "fail"),
    (scores_backwards, EVERYTHING, ("order of operations",), "order of operations", "fail"),
]


@pytest.mark.parametrize(
    "function, supports, rows, row, verdict",
    MISTAKES,
    ids=[f"{m[0].__name__}-{m[3]}" for m in MISTAKES],
)
def test_a_mistake_fails_in_its_row(function, supports, rows, row, verdict):
    report = check_attention(function, supports, rows=rows)
    assert {found.name: found.verdict for found in report.failed} == {row: verdict}


# The reference itself.


def test_the_reference_is_the_oracle():
    inputs, mask = FULL.query_key_value(), FULL.mask()
    mask[:, 1] = False
    for ours, theirs in zip(
        reference.attention(*inputs, mask), oracle.attention(*inputs, mask), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_its_gradients_are_its_finite_differences():
    inputs, mask = FULL.query_key_value(), FULL.mask()
    mask[:, 1] = False
    random = np.random.default_rng(0)
    before = reference.attention(*inputs, mask)
    of_output = random.standard_normal(before.output.shape)
    of_logsumexp = random.standard_normal(before.logsumexp.shape)
    keep = random.random(before.weights.shape)

    def loss(*inputs):
        found = reference.attention(*inputs, mask, keep=keep)
        seen = np.where(np.isfinite(found.logsumexp), found.logsumexp, 0)
        return (of_output * found.output).sum() + (of_logsumexp * seen).sum()

    gradients = reference.gradients(
        *inputs, mask, output=of_output, logsumexp=of_logsumexp, keep=keep
    )
    for number, gradient in enumerate(gradients[:3]):
        for place in np.ndindex(gradient.shape):
            step = np.zeros_like(gradient)
            step[place] = 1e-5
            ahead, behind = (
                loss(*inputs[:number], inputs[number] + way * step, *inputs[number + 1 :])
                for way in (1, -1)
            )
            assert abs((ahead - behind) / 2e-5 - gradient[place]) < 1e-8

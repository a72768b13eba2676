"""Mutants in derivatives and transformations fail in their row; tests of the equation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend, masks, scores
from attention.testing import EVERYTHING, check_attention, conformance
from attention.testing.reference import numerical_jvp, reference_attention
from attention.testing.rows import FULL
from tests import oracle
from tests.attention.testing import mutants

REVERSE_ONLY = EVERYTHING - {"jvp"}
stop = jax.lax.stop_gradient


def constant_key(query, key, value, **arguments):
    return attend(query, stop(key), value, **arguments)


def with_backward(change):
    """Return attention with other gradients; the backward pass has no further derivatives."""

    def function(*inputs, **arguments):
        attention = functools.partial(attend, **arguments)
        run = jax.custom_vjp(attention)
        run.defvjp(
            lambda *inputs: jax.vjp(attention, *stop(inputs)),
            lambda pullback, cotangents: change(pullback(cotangents)),
        )
        return run(*inputs)

    return function


reverse_only = with_backward(lambda gradients: gradients)
spreads_nan_gradients = with_backward(
    lambda gradients: tuple(gradient + 0 * gradients[0].sum() for gradient in gradients)
)


def constant_logsumexp(query, key, value, **arguments):
    found = attend(query, key, value, **arguments)
    return (found[0], stop(found[1])) if "returning" in arguments else found


def gradient_if_masked(query, key, value, mask=None, **arguments):
    """Output 0 in fully masked rows, with the gradient of a mean."""
    output = attend(query, key, value, mask=mask, **arguments)
    if mask is None or arguments:
        return output
    empty = ~mask[..., 0, :, :].any(axis=-1)[..., None, None]
    mean = jnp.broadcast_to(value.mean(axis=(-3, -2), keepdims=True), output.shape)
    return jnp.where(empty, mean - stop(mean), output)


def cleans_values_only(query, key, value, mask=None):
    """Mask scores of a NaN key in the forward pass, but multiply them in the backward pass."""
    groups = query.shape[-2] // key.shape[-2]
    value = jnp.where(jnp.isfinite(value), value, 0)
    key, value = jnp.repeat(key, groups, axis=-2), jnp.repeat(value, groups, axis=-2)
    scores = query.shape[-1] ** -0.5 * jnp.einsum("BTNH,BSNH->BNTS", query, key)
    allowed = True if mask is None else mask
    weights = jax.nn.softmax(scores, where=allowed)
    return jnp.einsum("BNTS,BSNH->BTNH", weights, value)


def constant_last_tile(query, key, value, **arguments):
    last = jnp.arange(key.shape[-3])[:, None, None] >= 128
    return cleans_values_only(query, jnp.where(last, stop(key), key), value, **arguments)


def drops_forward_only(query, key, value, **arguments):
    dropped = attend(query, key, value, **arguments)
    plain = attend(query, key, value)
    return plain + stop(dropped - plain)


def with_vmap(rule):
    """Return attention with a batching rule, a function of attention and stacked inputs."""

    def function(*inputs, **arguments):
        attention = functools.partial(attend, **arguments)
        run = jax.custom_batching.custom_vmap(attention)
        run.def_vmap(lambda size, batched, *inputs: (rule(attention, inputs), True))
        return run(*inputs)

    return function


vmap_of_the_first_slice = with_vmap(
    lambda attention, inputs: jnp.broadcast_to(attention(*(x[0] for x in inputs)), inputs[0].shape)
)
maps_examples = with_vmap(
    lambda attention, inputs: jax.lax.map(lambda example: attention(*example), inputs)
)


def float32_inside(query, key, value):
    output = attend(*(x.astype(jnp.float32) for x in (query, key, value)))
    return output.astype(query.dtype)


def reversed_scores(query, key, value, score, **arguments):
    return attend(query, key, value, score=tuple(reversed(score)), **arguments)


def ignores_sinks(query, key, value, score=(), **arguments):
    """Apply each score function to the scores, which an attention sink leaves as they are."""
    score = tuple(part for part in score if not isinstance(part, scores.AttentionSinks))
    return attend(query, key, value, score=score, **arguments)


def scores_by_index(query, key, value, *, score=(), positions=None, **arguments):
    positions = None if score else positions
    return attend(query, key, value, score=score, positions=positions, **arguments)


def heads_first(query, key, value, **arguments):
    return np.swapaxes(mutants.attention(query, key, value, **arguments), -3, -2)


def mixes_the_batch(query, key, value, **arguments):
    return mutants.attention(query, key, value + value.mean(axis=0), **arguments)


def zero_gradient_of_nan(query, key, value, **arguments):
    """Output NaN with a gradient of 0, as if rows were set to NaN after a clean computation."""
    output = attend(query, key, value, **arguments)
    finite = attend(*(jnp.where(jnp.isfinite(x), x, 0) for x in (query, key, value)), **arguments)
    return jnp.where(jnp.isnan(output), jnp.nan, finite)


def concrete_mask(query, key, value, mask=None, **arguments):
    """Convert a mask to NumPy, which fails for a mask that closes over a traced array."""
    if isinstance(mask, masks.FromFunction):
        mask = mask(np.arange(query.shape[-3])[:, None], np.arange(key.shape[-3]))
        mask = jnp.asarray(np.asarray(mask))
    return attend(query, key, value, mask=mask, **arguments)


def constant_closures(query, key, value, score=(), **arguments):
    """Stop the gradient of arrays that scores close over, with a derivative of 1 to the score."""

    def constant(part):
        def function(number, query, key, head):
            changed = part(stop(number), query, key, head)
            return stop(changed) + number - stop(number)

        return scores.from_function(function)

    return attend(query, key, value, score=tuple(map(constant, score)), **arguments)


def reduces_batch(query, key, value, **arguments):
    total = 0 * value.sum(axis=(0, 1, 3), keepdims=True)
    groups = query.shape[2] // key.shape[2]
    return attend(query, key, value, **arguments) + jnp.repeat(total, groups, axis=2)


def reduces_heads(query, key, value, **arguments):
    return attend(query, key, value, **arguments) + 0 * value.sum(axis=(1, 2, 3), keepdims=True)


def replicates(query, key, value, **arguments):
    """Keep values, without the sharding of the output."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("devices",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.lax.with_sharding_constraint(attend(query, key, value, **arguments), sharding)


def repairs_large_inputs(query, key, value, **arguments):
    """Skip a branch in a batch; under vmap, `cond` becomes `select` and runs both branches."""
    attention = functools.partial(attend, **arguments)
    large = (jnp.abs(query) > 1e9).any()
    return jax.lax.cond(
        large, lambda *inputs: attention(*(x / 2 for x in inputs)), attention, query, key, value
    )


NONFINITE = ("masked NaN and infinity", "gradients with masked NaN and infinity")
# Function, capabilities, rows: the last one fails, and the others pass.
MUTANTS = [
    (constant_key, REVERSE_ONLY, ("values", "mask", "gradients")),
    (constant_last_tile, REVERSE_ONLY, ("gradients", "gradients at unaligned lengths")),
    (reverse_only, EVERYTHING, ("mask", "gradients", "forward mode")),
    (reverse_only, REVERSE_ONLY, ("mask", "gradients", "second derivatives")),
    (constant_logsumexp, REVERSE_ONLY, ("gradients", "logsumexp", "gradients of logsumexp")),
    (gradient_if_masked, REVERSE_ONLY, ("fully masked rows", "gradients of fully masked rows")),
    (cleans_values_only, REVERSE_ONLY, ("mask", *NONFINITE)),
    (drops_forward_only, REVERSE_ONLY, ("dropout: rate and scale", "dropout: gradients")),
    (zero_gradient_of_nan, EVERYTHING, ("visible NaN", "gradients of visible NaN")),
    (spreads_nan_gradients, REVERSE_ONLY, ("visible NaN", "gradients of visible NaN")),
    (concrete_mask, EVERYTHING, ("values", "closures in masks")),
    (constant_closures, EVERYTHING, ("values", "closures in scores")),
    (reduces_batch, EVERYTHING, ("values", "sharded heads", "sharded batch")),
    (reduces_heads, EVERYTHING, ("values", "sharded batch", "sharded heads")),
    (replicates, EVERYTHING, ("values", "sharded batch")),
    (maps_examples, EVERYTHING - {"gradients"}, ("values", "vmap", "cost of vmap")),
    (repairs_large_inputs, EVERYTHING, ("values", "vmap", "cost of vmap")),
    (vmap_of_the_first_slice, EVERYTHING, ("values", "vmap")),
    (float32_inside, EVERYTHING, ("values", "float64")),
    (reversed_scores, EVERYTHING, ("order of operations",)),
    (constant_closures, EVERYTHING, ("gradients of scores",)),
    (ignores_sinks, EVERYTHING, ("attention sinks",)),
    (scores_by_index, EVERYTHING, ("order of operations", "scores at positions")),
    (heads_first, mutants.SUPPORTS, ("shapes and dtypes",)),
    (heads_first, mutants.SUPPORTS, ("values",)),
    (mixes_the_batch, mutants.SUPPORTS, ("batch",)),
]


@pytest.mark.parametrize("function, supports, rows", MUTANTS)
def test_each_mutant_fails_in_its_row(monkeypatch, function, supports, rows):
    """Without the search for the smallest example: each of its steps compiles."""
    monkeypatch.setattr(conformance, "ATTEMPTS", 0)
    report = check_attention(function, supports, rows=rows)
    assert [row.name for row in report.failed] == [rows[-1]]
    assert {row.verdict for row in report.rows if row.name != rows[-1]} <= {"pass"}


# The equation itself.


def test_equation_equals_oracle():
    inputs, mask = FULL[0].query_key_value(), FULL[0].mask()
    mask[:, 1] = False
    ours, theirs = reference_attention(*inputs, mask), oracle.attention(*inputs, mask)
    for name in ("output", "weights", "logsumexp"):
        np.testing.assert_allclose(ours[name], getattr(theirs, name), rtol=1e-12, atol=1e-14)


def test_gradients_of_the_equation_equal_finite_differences():
    inputs, cotangents = FULL[0].query_key_value(), FULL[0].cotangents("logsumexp")
    arguments = {"mask": FULL[0].mask(), "score": lambda products: 2 * np.tanh(products / 2)}
    keep = np.random.default_rng(0).random((2, 6, 5, 7))
    equation = functools.partial(reference_attention, **arguments, keep=keep)
    tangents = FULL[0].query_key_value(20)
    derivatives = numerical_jvp(equation, inputs, tangents)
    gradients = equation(*inputs, cotangents=cotangents)
    names = [f"gradient of {name}" for name in ("query", "key", "value")]
    actual = sum((gradients[name] * x).sum() for name, x in zip(names, tangents, strict=True))
    expected = sum((x * derivatives[name]).sum() for name, x in cotangents.items())
    assert abs(actual - expected) < 1e-6

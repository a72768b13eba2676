"""Bool arrays as masks: two axes are [T, S], otherwise as many axes as the weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend, dot_product_attention, empty_cache, masks
from attention.primitives.pytree_dataclass import array_field, pytree_dataclass
from tests import oracle
from tests.attention.primitives.inputs import draw, jitted

B, T, S, N, K = 3, 5, 7, 4, 2
RANDOM = np.random.default_rng(0)
INPUTS = draw((B, T, N, 6), (B, S, K, 6), (B, S, K, 6))
LENGTHS = np.array([7, 2, 4])
PADDING = np.arange(S) < LENGTHS[:, None]  # [B, S]
PAIRS = RANDOM.random((T, S)) < 0.6
EXAMPLES = RANDOM.random((B, 1, T, S)) < 0.6
HEADS = RANDOM.random((1, N, T, S)) < 0.6
ALL = RANDOM.random((B, N, T, S)) < 0.6

FORMS = {
    "mask": lambda array: array,
    "from_array": masks.from_array,
    "left of &": lambda array: array & masks.full(),
    "right of &": lambda array: masks.full() & jnp.asarray(array),
    "left of |": lambda array: array | ~masks.full(),
    "right of |": lambda array: ~masks.full() | array,
}


@pytest.mark.parametrize(
    "array", [PAIRS, PADDING[:, None, None], EXAMPLES, HEADS, ALL, ALL[:1, :, :1], ALL[..., :1]]
)
def test_arrays_have_two_axes_or_those_of_the_weights(array):
    def outputs(given):
        constant = {"constant in tiles": attend(*INPUTS, mask=array, tile_sizes=(2, 3))}
        return constant | {name: attend(*INPUTS, mask=FORMS[name](given)) for name in FORMS}

    each = np.broadcast_to(array, (B, N, T, S))
    one_head = [[INPUTS[0][:, :, n], *(x[:, :, n * K // N] for x in INPUTS[1:])] for n in range(N)]
    heads = [
        oracle.attention(*(x[:, :, None] for x in inputs), each[:, n]).output
        for n, inputs in enumerate(one_head)
    ]
    expected = np.concatenate(heads, axis=2)
    for name, output in jitted(outputs)(array).items():
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("array", [HEADS, ALL], ids=["heads", "examples and heads"])
def test_arrays_of_heads_compose_in_tiles(array):
    """Values and gradients, with a predicate per example beside them."""

    def gradients(mask, **options):
        def loss(*inputs):
            return jnp.sum(jnp.sin(attend(*inputs, mask=mask, **options)))

        return jax.grad(loss, argnums=(0, 1, 2))(*INPUTS)

    composed, dense = masks.lengths(LENGTHS) & array, PADDING[:, None, None, :] & array
    found, expected = jitted(
        lambda composed, dense: (
            gradients(composed, tile_sizes=(2, 3)),
            gradients(dense, implementation="reference"),
        )
    )(composed, dense)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("array", [PADDING[:, None, :], HEADS[0]], ids=["[B, 1, S]", "[N, T, S]"])
def test_three_axes_beside_a_batch_raise(form, array):
    with pytest.raises(ValueError, match=r"array\[:, None\] .* each example, .* array\[None\]"):
        attend(*INPUTS, mask=FORMS[form](array))


def test_three_axes_without_a_batch_are_those_of_the_weights():
    one = [array[0] for array in INPUTS]
    np.testing.assert_array_equal(
        attend(*one, mask=HEADS[0]), attend(*(x[None] for x in one), mask=HEADS)[0]
    )


def test_padding_of_a_square_batch_is_not_read_as_pairs():
    """[B, S] with B = T would be [T, S]: [B, 1, 1, S] is a mask of each example."""
    query, key, value = (array[:, :B] for array in INPUTS)
    mask = PADDING[:, :B]
    padded = attend(query, key, value, mask=mask[:, None, None, :])
    np.testing.assert_allclose(
        padded, attend(query, key, value, mask=masks.lengths(LENGTHS)), rtol=1e-5, atol=1e-6
    )
    with pytest.raises(ValueError, match=r"describes 3 queries \(T\), but there are 5"):
        attend(*INPUTS, mask=PADDING)


def test_positions_change_from_array_alone():
    """Arrays in `mask=` and beside `&` are by query and key, and `from_array` by position."""
    positions = np.arange(T)[::-1].copy(), np.arange(S)[::-1].copy()
    by_index = attend(*INPUTS, mask=HEADS, positions=positions)
    np.testing.assert_array_equal(by_index, attend(*INPUTS, mask=HEADS))
    for form in (masks.full() & HEADS, HEADS & masks.full()):
        np.testing.assert_array_equal(attend(*INPUTS, mask=form, positions=positions), by_index)
    with pytest.raises(ValueError, match=r"3 queries \(T\), .* is array\[:, None, None, :\]"):
        attend(*INPUTS, mask=masks.full() & PADDING, positions=positions)
    by_position = attend(*INPUTS, mask=masks.from_array(HEADS), positions=positions)
    np.testing.assert_array_equal(by_position, attend(*INPUTS, mask=HEADS[..., ::-1, ::-1]))


def test_bias_is_indexed_by_query_and_key_too():
    (bias,) = draw((B, N, T, S))
    positions = np.arange(T) + 90, np.arange(S)
    expected = attend(*INPUTS, bias=bias)
    for options in ({}, {"positions": positions}, {"positions": positions, "tile_sizes": (2, 3)}):
        found = attend(*INPUTS, bias=bias, **options)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"the score describes 3 queries \(T\)"):
        attend(*INPUTS, bias=bias[:, :, :3], positions=positions)


def test_arrays_beside_a_cache_are_indexed_by_query_and_slot():
    query, key, value = INPUTS
    cache, _ = empty_cache((B,), S, num_kv_heads=K, head_width=6).extend(key[:, :2], value[:, :2])
    cache, view = cache.extend(key[:, 2:], value[:, 2:])
    mask = RANDOM.random((B, 1, S - 2, S)) < 0.6
    last = np.concatenate([query, query[:, : S - 2 - T]], axis=1)[:, : S - 2]
    expected = attend(last, key, value, mask=mask)
    for each in (view, cache.view()):
        found = attend(last, each, mask=mask)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_arrays_beside_two_batch_axes_have_both():
    inputs = [np.stack([array] * 2) for array in INPUTS]
    with pytest.raises(ValueError, match=r"beside the batch axes \(2, 3\)"):
        attend(*inputs, mask=EXAMPLES)
    found = attend(*inputs, mask=EXAMPLES[None])[1]
    np.testing.assert_allclose(found, attend(*INPUTS, mask=EXAMPLES), rtol=1e-5, atol=1e-6)


@pytree_dataclass
class Reach(masks.Mask):
    """A mask with a number for each head."""

    reach: jax.Array = array_field("N")

    def _allows(self, query_position, key_position):
        return abs(query_position - key_position) <= self.reach[0]


def test_a_mask_of_a_user_with_heads():
    mask = Reach(jnp.array([0, 1, 3, 6]))
    expected = attend(*INPUTS, mask=mask, implementation="reference")
    found = attend(*INPUTS, mask=mask, tile_sizes=(2, 3))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(expected[:, :, 0] - expected[:, :, 1]).max() > 0.1
    with pytest.raises(ValueError, match=r"heads of this mask differ: use attend or masks\.to_arr"):
        masks.from_array(HEADS[0])(0, 0)


def test_a_mask_is_a_mask_of_the_drop_in():
    query, key, value = (array[:, :T, :2] for array in INPUTS)
    found = dot_product_attention(query, key, value, mask=masks.causal())
    np.testing.assert_array_equal(found, dot_product_attention(query, key, value, is_causal=True))


def test_no_dense_array_of_predicates_beside_an_array():
    """The mask of a drop-in call stays [1, 1, T, S] beside lengths of each example."""
    length = 64
    inputs = draw(*[(B, length, 1, 4)] * 3)
    array = np.ones((1, 1, length, length), bool)
    call = jax.jit(
        lambda *inputs: dot_product_attention(*inputs, mask=array, key_value_seq_lengths=LENGTHS)
    )
    text = call.lower(*inputs).as_text()
    assert f"tensor<1x1x{length}x{length}xi1>" in text
    assert f"tensor<{B}x1x{length}x{length}xi1>" not in text

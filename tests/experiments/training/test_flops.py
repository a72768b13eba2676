"""FLOPs of matrix products, by hand."""

import jax
import jax.numpy as jnp
from experiments.training.flops import matrix_flops, peak_flops

B, D, F = 3, 5, 7
PRODUCT = 2 * B * D * F


def count(function, *shapes):
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return matrix_flops(jax.jit(function).trace(*arrays).jaxpr.jaxpr)


def test_a_product_is_two_flops_for_each_multiplication():
    assert count(lambda x, w: jnp.tanh(x @ w), (B, D), (D, F)) == PRODUCT
    assert count(lambda x, w: jnp.einsum("bd,df->f", x, w), (B, D), (D, F)) > 0


def test_products_in_loops_branches_and_rematerialized_functions():
    def scanned(x, w):
        step = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None))
        return jax.lax.scan(step, x, w)

    assert count(scanned, (B, D), (4, D, D)) == 4 * 2 * B * D * D

    def branched(x, w):
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: (x @ w) @ (w.T @ w))

    assert count(branched, (B, D), (D, F)) == PRODUCT + 2 * D * F * F + 2 * B * F * F


def test_the_peak_is_that_of_the_longest_name():
    class Device:
        device_kind = "NVIDIA H100 PCIe"

    assert peak_flops(Device()) == 756e12
    Device.device_kind = "NVIDIA H100 80GB HBM3"
    assert peak_flops(Device()) == 989e12
    Device.device_kind = "cpu"
    assert peak_flops(Device()) is None

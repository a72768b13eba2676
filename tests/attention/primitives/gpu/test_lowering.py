"""The kernels lower for a GPU, also on a machine without one."""

import contextlib

import jax
import jax.numpy as jnp
import pytest
from jax import export

from attention import Dropout, masks, scores
from attention.primitives.arguments import check_arguments
from attention.primitives.gpu.flash import attend_by_kernel

TARGET = "__gpu$xla.gpu.triton"


def named_gpu():
    """From jax 0.12 on, Triton kernels lower for the GPU of the machine or of an abstract mesh."""
    if jax.__version_info__ < (0, 11):
        return contextlib.nullcontext()
    gpu = jax.sharding.AbstractDevice("NVIDIA A100", num_cores=None, platform="gpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=gpu))


def gradients(query, key, value, slopes, words):
    num_tokens = query.shape[1]
    mask = masks.causal() & masks.segments(jnp.zeros((2, num_tokens), jnp.int32))
    mask = mask & masks.lengths(jnp.array([50, 67])) | masks.window(3) & ~masks.block(7)

    def loss(query, key, value, slopes):
        arguments = check_arguments(
            query,
            key,
            value,
            mask=mask,
            score=(scores.alibi(slopes), scores.softcap(3.0)),
            dropout=Dropout(words, 0.1),
        )
        return attend_by_kernel(arguments)["output"].astype(jnp.float32).sum()

    return jax.grad(loss, argnums=(0, 1, 2, 3))(query, key, value, slopes)


# jax 0.12 announces that Mosaic GPU will replace Triton in Pallas.
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("dtype, x64", [("bfloat16", False), ("float32", True)])
def test_lowers_for_cuda(dtype, x64):
    """Three kernels: output, gradients of queries, gradients of keys."""
    shapes = (2, 300, 6, 24), (2, 300, 3, 24), (2, 300, 3, 64)
    inputs = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    inputs.append(jax.ShapeDtypeStruct((6,), "float32"))
    inputs.append(jax.ShapeDtypeStruct((2,), "uint32"))
    # jax does not guarantee compatibility between versions for this call: its export is opt-in.
    allowed = [export.DisabledSafetyCheck.custom_call(TARGET)]
    with jax.enable_x64(x64), named_gpu():
        export_for_cuda = export.export(
            jax.jit(gradients), platforms=["cuda"], disabled_checks=allowed
        )
        assert export_for_cuda(*inputs).mlir_module().count(TARGET) == 3

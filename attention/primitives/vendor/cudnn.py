"""Attention by the cuDNN library, which `jax.nn.dot_product_attention` calls on an NVIDIA GPU.

Forward and backward are cuDNN's; it has no forward mode, so other derivatives are those of tiles.
"""

from dataclasses import dataclass
from functools import partial

import jax
from jax import Array

from attention.primitives.request import Request
from attention.primitives.vendor.band import Band, split_band
from attention.primitives.vendor.derivatives import with_all_derivatives
from attention.primitives.vendor.jax_nn import call, common_refusal
from attention.primitives.vendor.repair import repaired


def refusal(request: Request) -> str | None:
    """Why it cannot compute a request here, in half a sentence; None if it can."""
    if (platform := jax.default_backend()) != "gpu":
        return f"it is for a GPU, and this is {platform}"
    device = jax.local_devices()[0]
    if "cuda" not in device.client.platform_version:
        return "it is for a GPU of NVIDIA"
    capability = tuple(int(part) for part in device.compute_capability.split("."))
    return request_refusal(request, capability)


def request_refusal(request: Request, capability: tuple[int, int]) -> str | None:
    """Why it cannot compute a request on a GPU of some compute capability; None if it can."""
    if why := common_refusal(request):
        return why
    if (dtype := str(request.query.dtype)) not in ("bfloat16", "float16"):
        return f"it computes in bfloat16 and float16 alone, and there is {dtype}"
    if capability < (8, 0):
        return f"it needs compute capability 8.0, and this is {'.'.join(map(str, capability))}"
    widest = 256 if capability >= (9, 0) else 128
    if (width := request.query.shape[-1]) > widest or width % 8:
        return f"its head widths are multiples of 8 up to {widest}, not {width}"
    if request.scores:
        return "it knows no scores"
    if isinstance(request.scale, jax.Array):
        return "its scale is a number in the program, not an array"
    band, others = split_band(request)
    if others:  # and it adds this finite number in half precision
        return "it hides keys by a number that a large score outweighs, except where causal"
    if band.before is not None and not band.is_causal:
        return "its windows look behind alone"
    return None


def attend_by_cudnn(request: Request) -> dict[str, Array]:
    """`attend` for a request that is not refused: "output"."""
    return {"output": _attend(float(request.scale), request)}


@dataclass(frozen=True)
class _Cudnn:
    scale: float  # a number in the program, where that of a request would be traced
    band: Band

    def __call__(self, request: Request) -> Array:
        # A window that is not called causal would let cuDNN look ahead.
        return call(request, self.band, implementation="cudnn", scale=self.scale)


@partial(jax.jit, static_argnums=0)
def _attend(scale: float, request: Request) -> Array:
    library = _Cudnn(scale, split_band(request)[0])
    return repaired(request, partial(with_all_derivatives, library))

"""FLOPs of a training step, counted in the jaxpr of the forward pass, and the peak of devices."""

import math
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

# Dense bfloat16 FLOP/s of a device, by the beginning of its name.
PEAKS = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
}


def peak_flops(device: jax.Device) -> float | None:
    """Return the bfloat16 FLOP/s that a device can reach; None if it is not in `PEAKS`."""
    names = [name for name in PEAKS if device.device_kind.startswith(name)]
    return PEAKS[max(names, key=len)] if names else None


def matrix_flops(jaxpr: Jaxpr) -> int:
    """Return the FLOPs of all matrix products: two for each multiplication with an addition.

    The body of a scan counts as often as it runs, the body of a `while` loop once, and of the
    branches of a `cond` the most expensive one.
    """
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracting, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            depth = math.prod(shape[axis] for axis in contracting)
            total += 2 * depth * math.prod(equation.outvars[0].aval.shape)
        inner = [matrix_flops(each) for each in _inner(equation.params)]
        if equation.primitive.name == "cond":
            total += max(inner)
        else:
            total += sum(inner) * equation.params.get("length", 1)
    return total


def _inner(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """Yield the jaxprs in the parameters of an equation."""
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else [value]:
            if isinstance(each, ClosedJaxpr):
                yield each.jaxpr
            elif isinstance(each, Jaxpr):
                yield each

"""Checks of the numbers in configs and constructors."""

import math
import operator
from contextlib import suppress
from numbers import Integral

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

BOUNDS = {"above": operator.gt, "at_least": operator.ge, "at_most": operator.le}


def check_number(
    name: str, value: float | None, *, required: bool = False, **bounds: float | None
) -> None:
    """Raise a ValueError for a number that is not finite, or outside the bounds in `BOUNDS`.

    None is accepted, also as a bound, unless `required`; a traced value is not checked.
    """
    if (value is None and not required) or isinstance(value, jax.core.Tracer):
        return
    is_finite = value is not None and math.isfinite(value)
    given = {word: bound for word, bound in bounds.items() if bound is not None}
    wanted = [] if is_finite else ["finite"]
    wanted += [f"{word.replace('_', ' ')} {bound}" for word, bound in given.items()]
    if not (is_finite and all(BOUNDS[word](value, given[word]) for word in given)):
        raise ValueError(f"{name} must be {' and '.join(wanted)}, got {value}")


def check_count(name: str, value: int | None, *, required: bool = False, **bounds: int) -> None:
    """Raise a ValueError for a bool, a float or a number outside the bounds, as `check_number`."""
    allowed = Integral if required else Integral | None
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    check_number(name, value, **bounds)


def check_rate(name: str, value: float) -> None:
    """Raise a ValueError for a rate of dropout outside [0, 1); a traced rate is not checked."""
    if not isinstance(value, jax.core.Tracer) and not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value}")


def resolve_heads(
    width: int, num_heads: int, num_kv_heads: int | None, head_width: int | None
) -> tuple[int, int]:
    """Return K, which is N unless given, and H, which is D / N unless given.

    Raises:
        ValueError: N, K or H below 1, K does not divide N, or a D / N that is no whole number.
    """
    check_count("num_heads", num_heads, at_least=1)
    check_count("num_kv_heads", num_kv_heads, at_least=1)
    check_count("head_width", head_width, at_least=1)
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    divisors = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
    if num_kv_heads not in divisors:
        raise ValueError(
            f"num_heads={num_heads} cannot be shared evenly by num_kv_heads={num_kv_heads}: "
            f"use one of {', '.join(map(str, divisors))}"
        )
    if head_width is None and width % num_heads:
        raise ValueError(f"width={width} is not divisible by num_heads={num_heads}: set head_width")
    return num_kv_heads, width // num_heads if head_width is None else head_width


def check_dtype(name: str, dtype: DTypeLike | None) -> None:
    """Raise a ValueError for a dtype that is not floating; None is accepted."""
    with suppress(TypeError):  # of an unknown name
        if dtype is None or jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
            return
    raise ValueError(f"{name} must be a floating dtype, such as 'bfloat16', got {dtype!r}")

"""What a number of a config or a constructor may be."""

import math

import jax


def check_number(
    name: str, value: float | None, *, above: float | None = None, at_least: float | None = None
) -> None:
    """Raise a ValueError for a number that is not finite, or beyond its bound.

    Args:
        name: of the argument.
        value: the number. None is accepted, and a traced value is not checked.
        above: the bound that it exceeds; None for any.
        at_least: the bound that it reaches; None for any.
    """
    if value is None or isinstance(value, jax.core.Tracer):
        return
    if above is not None:
        wanted, is_right = f"a finite number above {above}", value > above
    elif at_least is not None:
        wanted, is_right = f"at least {at_least}", value >= at_least
    else:
        wanted, is_right = "a finite number", True
    if not (is_right and math.isfinite(value)):
        raise ValueError(f"{name} must be {wanted}, got {value}")


def check_rate(name: str, value: float) -> None:
    """Raise a ValueError for a rate of dropout outside [0, 1); a traced rate is not checked."""
    if not isinstance(value, jax.core.Tracer) and not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value}")

"""Bounds of the numbers that configs, modules and functions are given."""

import math

import jax


def check_rate(name: str, value: float) -> None:
    """Raise a ValueError unless a rate, such as that of dropout, is in [0, 1).

    A traced value is not checked.
    """
    if not isinstance(value, jax.core.Tracer) and not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value}")


def check_number(
    name: str, value: float | None, *, above: float | None = None, at_least: float | None = None
) -> None:
    """Raise a ValueError unless a number is finite and within its bounds.

    Args:
        name: of the number, for the message.
        value: None and a traced value are not checked.
        above: a bound that the number must exceed.
        at_least: the smallest number allowed.
    """
    if value is None or isinstance(value, jax.core.Tracer):
        return
    wanted, fits = "finite", math.isfinite(value)
    if above is not None:
        wanted, fits = f"{wanted} and above {above}", fits and value > above
    if at_least is not None:
        wanted, fits = f"{wanted} and at least {at_least}", fits and value >= at_least
    if not fits:
        raise ValueError(f"{name} must be {wanted}, got {value}")

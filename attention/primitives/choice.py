"""Check names that a user gives, and find the nearest valid one."""

from collections.abc import Collection, Sequence
from difflib import get_close_matches

MANY = 20  # names; of more, a message lists those near the given one


def one_of(name: str, given: str, known: Sequence[str], *, registry: str | None = None) -> None:
    """Check that the value `given` of the argument `name` is a known one.

    `registry` names a dictionary with these values, to which users can add others.

    Raises:
        ValueError: an unknown value; the message lists the known ones and suggests the nearest.
    """
    if given not in known:
        near = get_close_matches(str(given).lower(), known) if len(known) > MANY else []
        listed = ", ".join([*near, "..."] if near else known)
        where = f" (the registry {registry})" if registry else ""
        begins = [each for each in known if str(given).startswith(f"{each}_")]
        hint = did_you_mean(begins[0] if begins else given, known)
        raise ValueError(f"{name} must be one of {listed}{where}, got {given!r}{hint}")


def did_you_mean(given: object, known: Collection[str]) -> str:
    """Return the end of a message that suggests the nearest known name, "" if none is near."""
    near = [get_close_matches(text, known, 1) for text in (str(given), str(given).lower())]
    return f"; did you mean {(near[0] or near[1])[0]!r}?" if any(near) else ""

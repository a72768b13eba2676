"""Which implementation computes a request: the one that was named, or one that can say why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
from jax import Array

from attention.primitives.choice import one_of
from attention.primitives.request import Request


@dataclass(frozen=True)
class Implementation:
    """One way to compute attention, which means the same as all others.

    Attributes:
        name: by which it is asked for.
        refusal: why it cannot compute a request here, in half a sentence; None if it can.
        run: computes "output" and what the request wants returned, by name.
        preference: why it is the one to choose for a request that it can compute, in half a
            sentence; None if another should be tried first.
    """

    name: str
    refusal: Callable[[Request], str | None]
    run: Callable[[Request], dict[str, Array]]
    preference: Callable[[Request], str | None]


@dataclass(frozen=True)
class Choice:
    """The implementation that computes a request, and why not another.

    Attributes:
        implementation: what was chosen.
        reason: why.
        refusals: name → why it cannot compute the request, of those that cannot.
    """

    implementation: Implementation
    reason: str
    refusals: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{self.implementation.name}: {self.reason}"]
        return "\n".join(lines + [f"not {name}: {why}" for name, why in self.refusals.items()])


def choose(request: Request, name: str | None, implementations: Sequence[Implementation]) -> Choice:
    """The named implementation, or the first that prefers a request it can compute.

    Raises:
        ValueError: an unknown name, or one that cannot compute this, with the reason and the names
            of those that could.
    """
    if name is not None:
        one_of("implementation", name, [one.name for one in implementations])
        chosen = next(one for one in implementations if one.name == name)
        if (why := chosen.refusal(request)) is None:
            return Choice(chosen, "asked for by name", {})
        able = [one.name for one in implementations if one.refusal(request) is None]
        raise ValueError(
            f"implementation {name!r} cannot compute this: {why}; {', '.join(able)} could"
        )
    refusals = {one.name: why for one in implementations if (why := one.refusal(request))}
    for one in implementations:
        if one.name not in refusals and (reason := one.preference(request)):
            return Choice(one, f"{reason} on {jax.default_backend()}", refusals)
    raise AssertionError("the last implementation takes everything")

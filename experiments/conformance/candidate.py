"""A function to check against the contract."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from jax import Array


@dataclass(frozen=True)
class Candidate:
    """A function with the signature of `attention.attend`.

    Attributes:
        name: full name of the function.
        version: package and version.
        function: that function.
        supports: the capabilities of `attention.testing` that its documentation claims.
    """

    name: str
    version: str
    function: Callable[..., Any]
    supports: Collection[str]


def for_heads(mask: Array | None) -> Array | None:
    """Return a mask `[..., T, S]` as `[..., 1, T, S]`: the same for all heads."""
    return None if mask is None else mask[..., None, :, :]

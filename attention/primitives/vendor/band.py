"""Masks that are a band around the diagonal, which libraries take as numbers and not as arrays."""

from collections.abc import Iterator
from typing import NamedTuple

from jax import Array

from attention.primitives import masks
from attention.primitives.masks import Mask
from attention.primitives.request import Request


class Band(NamedTuple):
    """Keys at most `before` positions before the query and `after` after it; None: at any."""

    before: int | None = None
    after: int | None = None

    @property
    def is_causal(self) -> bool:
        """Whether it hides what is ahead of the query, and nothing but that from this side."""
        return self.after == 0


def conjuncts(mask: Mask | Array | None) -> Iterator[Mask | Array]:
    """The masks that `&` composes a mask of."""
    if isinstance(mask, masks._And):
        yield from conjuncts(mask.left)
        yield from conjuncts(mask.right)
    elif mask is not None:
        yield mask


def split_band(request: Request) -> tuple[Band, list[Mask | Array]]:
    """The band that the causal masks and windows of a request leave, and its other masks.

    Explicit positions have no diagonal: there every mask is among the others.
    """
    num_queries, num_keys = request.query.shape[-3], request.key.shape[-3]
    before, after, others = [], [], []
    for mask in conjuncts(request.mask):
        match mask:
            case masks._Causal() if request.counted:
                after.append(0)
            case masks._Window() if request.counted:
                before.append(min(mask.before, num_queries))
                after.append(min(mask.after, num_keys))
            case _:
                others.append(mask)
    return Band(min(before, default=None), min(after, default=None)), others

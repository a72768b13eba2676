"""Masks that are a band around the diagonal: libraries take its two widths as numbers."""

from collections.abc import Iterator
from typing import NamedTuple

from attention.primitives import masks
from attention.primitives.arguments import Arguments
from attention.primitives.masks import Mask


class Band(NamedTuple):
    """Keys at most `before` positions before the query and `after` after it; None = any number."""

    before: int | None = None
    after: int | None = None

    @property
    def is_causal(self) -> bool:
        """Whether it masks all keys after the query."""
        return self.after == 0


def _terms(mask: Mask | None) -> Iterator[Mask]:
    """Yield the masks of which `&` composes a mask."""
    if isinstance(mask, masks.And):
        yield from _terms(mask.left)
        yield from _terms(mask.right)
    elif mask is not None:
        yield mask


def split_band(arguments: Arguments) -> tuple[Band, list[Mask]]:
    """Return the intersection of all causal and window masks, and the other masks.

    At explicit positions, query and key index do not give the distance: there all masks are others.
    """
    num_queries, num_keys = arguments.query.shape[-3], arguments.key.shape[-3]
    before, after, others = [], [], []
    for mask in _terms(arguments.mask):
        match mask:
            case masks.Causal() if arguments.counted:
                after.append(0)
            case masks.Window() if arguments.counted:
                before += [] if mask.before is None else [min(mask.before, num_queries)]
                after += [] if mask.after is None else [min(mask.after, num_keys)]
            case _:
                others.append(mask)
    return Band(min(before, default=None), min(after, default=None)), others

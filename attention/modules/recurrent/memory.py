"""What a decoder knows of its source."""

from typing import NamedTuple

from jax import Array


class Memory(NamedTuple):
    """A source that was read.

    Attributes:
        annotations: `[..., S, 2·F]`, each token with what stands on both sides of it.
        summary: `[..., F]`, the whole source: the vector that a decoder begins with.
        key: `[..., S, F]`, the annotations as additive attention compares them: None until
            `remember` computes them, and always where nobody compares them so.
    """

    annotations: Array
    summary: Array
    key: Array | None = None

"""A part of a decode state that never changes."""

from typing import Any

from attention.primitives.pytree_dataclass import pytree_dataclass


@pytree_dataclass
class Constant:
    """A part of a decode state that steps read and never change, such as an encoder output.

    All hypotheses of a row share it: beam search neither repeats nor reorders it.

    Attributes:
        value: a pytree with leaves `[B, *]`.
    """

    value: Any

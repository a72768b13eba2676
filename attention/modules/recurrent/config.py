"""Config of a recurrent encoder-decoder, and the attentions by name."""

from collections.abc import Callable
from dataclasses import dataclass

from flax import nnx
from jax.typing import DTypeLike

from attention.modules.recurrent.attention import (
    AdditiveAttention,
    MultiplicativeAttention,
    NoAttention,
)
from attention.modules.recurrent.encoder import CELLS
from attention.modules.recurrent.steps import BahdanauStep, LuongStep
from attention.primitives.choice import one_of

# Name in a config -> (class of the attention, class of the step). Users may add their own.
ATTENTIONS: dict[str, tuple[Callable[..., nnx.Module], Callable[..., nnx.Module]]] = {
    "additive": (AdditiveAttention, BahdanauStep),
    "multiplicative": (MultiplicativeAttention, LuongStep),
    "none": (NoAttention, BahdanauStep),
}


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """Sizes and choices of a recurrent encoder-decoder with one layer on each side.

    Attributes:
        embedding_width: D, of the embeddings.
        hidden: F, of the state of each cell.
        cell: name in `CELLS`: "gru" (Cho et al. 2014) or "lstm" (Hochreiter and Schmidhuber 1997).
        attention: name in `ATTENTIONS`: "additive" (Bahdanau et al. 2015), "multiplicative" (Luong
            et al. 2015, "general" scores and input feeding) or "none" (Cho et al. 2014).
        max_length: of a sequence.
        dropout: rate on the embeddings.
        dtype: of the computation; that of the parameters if None.
        param_dtype: of the parameters.
    """

    embedding_width: int = 256
    hidden: int = 512
    cell: str = "gru"
    attention: str = "additive"
    max_length: int = 128
    dropout: float = 0.0
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = "float32"

    def __post_init__(self) -> None:
        """Raise a ValueError if a number is out of range or a name is not registered."""
        for name in ("embedding_width", "hidden", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")
        one_of("cell", self.cell, tuple(CELLS))
        one_of("attention", self.attention, tuple(ATTENTIONS))

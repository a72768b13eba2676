"""The numbers that make a recurrent encoder-decoder, checked before anything is built."""

from dataclasses import dataclass

from attention.modules.recurrent.attention import ATTENTIONS
from attention.modules.recurrent.cells import CELLS
from attention.primitives.choice import one_of


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """Sizes and choices of a recurrent encoder-decoder, one layer on each side.

    Attributes:
        embedding_width: D, of the embeddings.
        hidden: F, of the state of each cell.
        cell: "gru" (Cho et al. 2014) or "lstm" (Hochreiter and Schmidhuber 1997).
        attention: how the decoder looks at the source. "additive": before each step, and the
            context goes into the cell (Bahdanau et al. 2015). "multiplicative": after each step,
            and what comes of it goes into the next (Luong et al. 2015, "general" scores and input
            feeding). "none": a fixed summary goes into every step (Cho et al. 2014).
        max_length: the longest sequence.
        dropout: rate on the embeddings.
    """

    embedding_width: int = 256
    hidden: int = 512
    cell: str = "gru"
    attention: str = "additive"
    max_length: int = 128
    dropout: float = 0.0

    def __post_init__(self) -> None:
        """Refuses what does not fit, in one sentence."""
        for name in ("embedding_width", "hidden", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")
        one_of("cell", self.cell, tuple(CELLS))
        one_of("attention", self.attention, tuple(ATTENTIONS))

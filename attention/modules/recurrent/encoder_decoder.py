"""Recurrent encoder-decoder, assembled by a config."""

from collections.abc import Callable
from dataclasses import dataclass

from flax import nnx
from jax.typing import DTypeLike

from attention.modules.embeddings import Embedding
from attention.modules.encoder_decoder import EncoderDecoder
from attention.modules.linear import linear
from attention.modules.recurrent.attention import (
    AdditiveAttention,
    MultiplicativeAttention,
    NoAttention,
)
from attention.modules.recurrent.decoder import RecurrentDecoder
from attention.modules.recurrent.encoder import CELLS, RecurrentEncoder
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


class RecurrentEncoderDecoder(EncoderDecoder):
    """An `EncoderDecoder` of a bidirectional recurrent encoder and a recurrent decoder.

    The state does not know which target tokens it contains, so `decode` accepts no mask of them.
    """

    @classmethod
    def from_config(
        cls,
        config: RecurrentConfig,
        *,
        source_vocab_size: int,
        target_vocab_size: int,
        rngs: nnx.Rngs,
    ) -> "RecurrentEncoderDecoder":
        """Make the model of a config."""
        width, hidden = config.embedding_width, config.hidden
        attention, step = ATTENTIONS[config.attention]
        shared = {"dtype": config.dtype, "param_dtype": config.param_dtype, "rngs": rngs}
        cell = {"cell": CELLS[config.cell]}
        limits = {"max_length": config.max_length, "dropout": config.dropout}
        source_embedding = Embedding(source_vocab_size, width, **limits, **shared)
        encoder = RecurrentEncoder(width, hidden, **cell, **shared)
        target_embedding = Embedding(target_vocab_size, width, **limits, **shared)
        parts = {"encoder_width": 2 * hidden, "attention": attention, "step": step}
        decoder = RecurrentDecoder(width, hidden, **parts, **cell, **shared)
        sizes = {"embed": decoder.features_width}, {"vocab": target_vocab_size}
        output = linear(*sizes, **shared)
        return cls(source_embedding, encoder, target_embedding, decoder, output=output)

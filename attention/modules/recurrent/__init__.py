"""Recurrent encoder-decoder with and without attention, and a recurrent layer for hybrids."""

from attention.modules.recurrent.attention import (
    AdditiveAttention,
    MultiplicativeAttention,
    NoAttention,
)
from attention.modules.recurrent.decoder import RecurrentCache, RecurrentDecoder
from attention.modules.recurrent.encoder import CELLS, RecurrentEncoder
from attention.modules.recurrent.encoder_decoder import (
    ATTENTIONS,
    RecurrentConfig,
    RecurrentEncoderDecoder,
)
from attention.modules.recurrent.layer import RecurrentLayer
from attention.modules.recurrent.steps import BahdanauStep, LuongStep

__all__ = [
    "ATTENTIONS",
    "CELLS",
    "AdditiveAttention",
    "BahdanauStep",
    "LuongStep",
    "MultiplicativeAttention",
    "NoAttention",
    "RecurrentCache",
    "RecurrentConfig",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "RecurrentEncoderDecoder",
    "RecurrentLayer",
]

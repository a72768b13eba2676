"""The recurrent encoder-decoder, with attention and without: where the story starts.

It has the interface of the Transformer's `EncoderDecoder`, so whatever trains, decodes and explains
the one does the same with the other.
"""

from attention.modules.recurrent.config import RecurrentConfig
from attention.modules.recurrent.decoder import DecoderState
from attention.modules.recurrent.encoder_decoder import RecurrentEncoderDecoder
from attention.modules.recurrent.memory import Memory

__all__ = ["DecoderState", "Memory", "RecurrentConfig", "RecurrentEncoderDecoder"]

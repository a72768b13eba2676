"""Text generation: `generate` and `stream` for models, `decode` for any step function."""

from attention.decoding.beam import Beam
from attention.decoding.generate import generate
from attention.decoding.length_penalty import GNMT, LengthPenalty, Power
from attention.decoding.loop import decode
from attention.decoding.output import GenerationOutput, Prediction
from attention.decoding.processors import (
    AllowedTokens,
    History,
    LogitProcessor,
    MinP,
    NoRepeatNgram,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)
from attention.decoding.program import GenerativeModel
from attention.decoding.stopping import Prefix, StoppingCriteria
from attention.decoding.strategy import (
    DecodingOptions,
    Greedy,
    NextTokens,
    RowInputs,
    Sample,
    Strategy,
    TokenStrategy,
)
from attention.decoding.stream import stream

__all__ = [
    "GNMT",
    "AllowedTokens",
    "Beam",
    "DecodingOptions",
    "GenerationOutput",
    "GenerativeModel",
    "Greedy",
    "History",
    "LengthPenalty",
    "LogitProcessor",
    "MinP",
    "NextTokens",
    "NoRepeatNgram",
    "Power",
    "Prediction",
    "Prefix",
    "RepetitionPenalty",
    "RowInputs",
    "Sample",
    "StoppingCriteria",
    "Strategy",
    "Temperature",
    "TokenStrategy",
    "TopK",
    "TopP",
    "decode",
    "generate",
    "stream",
]

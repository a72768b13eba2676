"""Text generation: `generate` and `stream` for models, `decode` for any step function."""

from attention.decoding.beam import GNMT, Beam, LengthPenalty, Power
from attention.decoding.generate import generate
from attention.decoding.loop import decode
from attention.decoding.output import GenerationOutput, Prediction, Prefix, StoppingCriteria
from attention.decoding.program import GenerativeModel
from attention.decoding.sampling import (
    AllowedTokens,
    DecodingOptions,
    Greedy,
    History,
    LogitProcessor,
    MinP,
    NextTokens,
    NoRepeatNgram,
    RepetitionPenalty,
    RowInputs,
    Sample,
    Strategy,
    Temperature,
    TokenStrategy,
    TopK,
    TopP,
)
from attention.decoding.text import stream

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

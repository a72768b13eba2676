"""Decoding over any function `step(state, tokens) -> (logits, state)`."""

from attention.decoding.answer import Answer
from attention.decoding.beam import beam_search
from attention.decoding.cached import attending, cached, prefill
from attention.decoding.filters import Filter, MinP, Temperature, TopK, TopP
from attention.decoding.greedy import greedy
from attention.decoding.recompute import recompute
from attention.decoding.rules import Forced, Rules
from attention.decoding.sample import sample
from attention.decoding.stream import stream

__all__ = [
    "Answer",
    "Filter",
    "Forced",
    "MinP",
    "Rules",
    "Temperature",
    "TopK",
    "TopP",
    "attending",
    "beam_search",
    "cached",
    "greedy",
    "prefill",
    "recompute",
    "sample",
    "stream",
]

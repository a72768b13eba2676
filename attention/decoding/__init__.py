"""Decoding over any function `step(state, tokens) -> (logits, state)`."""

from attention.decoding.answer import Answer
from attention.decoding.beam import beam_search
from attention.decoding.cached import attending, cached, nothing_seen, prefill
from attention.decoding.filters import Filter, MinP, Temperature, TopK, TopP
from attention.decoding.greedy import greedy
from attention.decoding.memory import WithMemory
from attention.decoding.queue import Queue
from attention.decoding.recompute import recompute
from attention.decoding.rules import Forced, Rules
from attention.decoding.sample import sample
from attention.decoding.stream import stream

__all__ = [
    "Answer",
    "Filter",
    "Forced",
    "MinP",
    "Queue",
    "Rules",
    "Temperature",
    "TopK",
    "TopP",
    "WithMemory",
    "attending",
    "beam_search",
    "cached",
    "greedy",
    "nothing_seen",
    "prefill",
    "recompute",
    "sample",
    "stream",
]

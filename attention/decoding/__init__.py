"""Decoding over any function `step(state, tokens) -> (logits, state)`."""

from attention.decoding.cached import cached, prefill
from attention.decoding.greedy import greedy
from attention.decoding.recompute import recompute

__all__ = ["cached", "greedy", "prefill", "recompute"]

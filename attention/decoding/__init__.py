"""Decoding over any function `step(state, tokens) -> (logits, state)`."""

from attention.decoding.greedy import greedy
from attention.decoding.recompute import recompute

__all__ = ["greedy", "recompute"]

"""Whole models against the clock: what decoding, depth and learning cost."""

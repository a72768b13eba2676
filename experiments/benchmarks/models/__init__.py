"""Benchmarks of whole models: decoding, depth, training and translation."""

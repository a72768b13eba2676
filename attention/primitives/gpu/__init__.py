"""Attention in kernels: one program per tile of queries or keys, nothing in between in memory."""

"""FlashAttention kernels in Pallas: one program per tile of queries or keys."""

"""Norms by name."""

from flax import nnx

# Ba et al. 2016; Zhang and Sennrich 2019, which neither centres nor has a bias.
NORMS: dict[str, type[nnx.LayerNorm] | type[nnx.RMSNorm]] = {
    "layer": nnx.LayerNorm,
    "rms": nnx.RMSNorm,
}

Norm = nnx.LayerNorm | nnx.RMSNorm

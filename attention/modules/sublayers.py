"""Sublayers of the blocks of a config, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flax import nnx

from attention.modules.attention import SelfAttention
from attention.modules.cross_attention import CrossAttention
from attention.modules.feed_forward import FeedForward
from attention.modules.positions import POSITIONS

if TYPE_CHECKING:
    from attention.modules.config import TransformerConfig


def self_attention(config: TransformerConfig, rngs: nnx.Rngs) -> SelfAttention:
    """Make the self-attention of a config."""
    rotary = POSITIONS[config.positions].rotary
    rotary = rotary and rotary(config)
    return SelfAttention(
        config.width, rotary=rotary, window=config.window, **_heads(config), **_shared(config, rngs)
    )


def cross_attention(config: TransformerConfig, rngs: nnx.Rngs) -> CrossAttention:
    """Make the cross-attention of a config."""
    return CrossAttention(config.width, **_heads(config), **_shared(config, rngs))


def dense(config: TransformerConfig, rngs: nnx.Rngs) -> FeedForward:
    """Make the feed-forward layer of a config."""
    options = {"activation": config.activation, "gated": config.gated, **_shared(config, rngs)}
    return FeedForward(config.width, config.hidden, **options)


# name -> f(config, rngs) to the first and to the last sublayer of a block. Add your own.
MIXERS: dict[str, Callable[[TransformerConfig, nnx.Rngs], Any]] = {"attention": self_attention}
FEED_FORWARDS: dict[str, Callable[[TransformerConfig, nnx.Rngs], Any]] = {"dense": dense}


def _heads(config: TransformerConfig) -> dict[str, Any]:
    names = ("num_heads", "num_kv_heads", "head_width", "value_width", "qkv_bias", "qk_norm")
    return {
        **{name: getattr(config, name) for name in (*names, "norm_epsilon", "implementation")},
        "scale": config.attention_scale,
        "softcap": config.softcap,
        "dropout": config.attention_dropout,
    }


def _shared(config: TransformerConfig, rngs: nnx.Rngs) -> dict[str, Any]:
    return {
        "use_bias": config.use_bias,
        "kernel_init": config.initializer("kernel_init"),
        "dtype": config.dtype,
        "param_dtype": config.param_dtype,
        "rngs": rngs,
    }

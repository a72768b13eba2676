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
    options = {"rotary": rotary and rotary(config), "window": config.window}
    return SelfAttention(config.width, **options, **_attention_options(config, rngs))


def cross_attention(config: TransformerConfig, rngs: nnx.Rngs) -> CrossAttention:
    """Make the cross-attention of a config."""
    return CrossAttention(config.width, **_attention_options(config, rngs))


def dense(config: TransformerConfig, rngs: nnx.Rngs) -> FeedForward:
    """Make the feed-forward layer of a config."""
    options = {name: getattr(config, name) for name in ("activation", "gated", "use_bias")}
    return FeedForward(config.width, config.hidden, **options, **config.linear_options(rngs))


# name -> f(config, rngs) to the first and to the last sublayer of a block. Add your own.
MIXERS: dict[str, Callable[[TransformerConfig, nnx.Rngs], Any]] = {"attention": self_attention}
FEED_FORWARDS: dict[str, Callable[[TransformerConfig, nnx.Rngs], Any]] = {"dense": dense}


def _attention_options(config: TransformerConfig, rngs: nnx.Rngs) -> dict[str, Any]:
    names = ("num_heads", "num_kv_heads", "head_width", "value_width", "use_bias", "qkv_bias")
    names += ("qk_norm", "norm_epsilon", "softcap", "implementation")
    return {
        **{name: getattr(config, name) for name in names},
        "scale": config.attention_scale,
        "dropout": config.attention_dropout,
        **config.linear_options(rngs),
    }

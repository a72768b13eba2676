"""Image patches as tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.config import TransformerConfig
from attention.modules.dropout import drop
from attention.modules.linear import linear
from attention.modules.positions import POSITIONS


class PatchEmbedding(nnx.Module):
    """One vector per square patch of an image (Dosovitskiy et al. 2021, equation 1).

    Patches count from the upper left corner, row by row.
    """

    def __init__(
        self,
        width: int,
        *,
        image_shape: Sequence[int],
        patch_size: int,
        positions: Callable[[Array, int], Array] | None = None,
        dropout: float = 0.0,
        **options: Any,  # noqa: ANN401 - of several types
    ) -> None:
        """Make the projection of a patch to D numbers.

        Args:
            width: D.
            image_shape: height, width and channels.
            patch_size: pixels on a side of a patch; must divide height and width.
            positions: as in `Embedding`.
            dropout: rate on the vectors.
            options: of the projection, as in `linear`.

        Raises:
            ValueError: patches that do not fill the image.
        """
        height, across, channels = image_shape
        if patch_size < 1 or height % patch_size or across % patch_size:
            raise ValueError(
                f"patches of {patch_size}x{patch_size} pixels do not fill an image of "
                f"{height}x{across}: patch_size must divide both sides"
            )
        self.num_patches = (height // patch_size) * (across // patch_size)
        self.projection = linear(
            {"pixels": patch_size * patch_size * channels},
            {"embed": width},
            **options,
        )
        self.positions = positions
        self.image_shape = height, across, channels
        self.patch_size = patch_size
        self.dropout = dropout

    @classmethod
    def from_config(
        cls,
        config: TransformerConfig,
        *,
        image_shape: Sequence[int],
        patch_size: int,
        rngs: nnx.Rngs,
    ) -> "PatchEmbedding":
        """Make the embedding of a Transformer.

        Raises:
            ValueError: patches that do not fill the image, or more of them than `max_length`.
        """
        embed = POSITIONS[config.positions].embed
        made = cls(
            config.width,
            image_shape=image_shape,
            patch_size=patch_size,
            positions=embed and embed(config, rngs),
            use_bias=config.use_bias,
            dropout=config.dropout,
            **config.linear_options(rngs),
        )
        if made.num_patches > config.max_length:
            raise ValueError(
                f"an image of {made.num_patches} patches is longer than "
                f"max_length={config.max_length}"
            )
        return made

    def __call__(self, images: Array, *, rng: Array | None = None) -> Array:
        """Map images `[..., height, width, channels]` to vectors `[..., S, D]`.

        Raises:
            ValueError: images of another shape than that of `__init__`.
        """
        if images.shape[-3:] != self.image_shape:
            raise ValueError(
                f"images must be {_times(self.image_shape)} (height x width x channels), "
                f"got {_times(images.shape[-3:])}"
            )
        vectors = self.projection(patches(images, self.patch_size))
        if self.positions is not None:
            added = self.positions(jnp.arange(self.num_patches), vectors.shape[-1])
            vectors += jnp.broadcast_to(added.astype(vectors.dtype), vectors.shape)
        return drop(vectors, self.dropout, rng)


def patches(images: Array, size: int) -> Array:
    """Cut images `[..., height, width, channels]` into patches `[..., S, size²·channels]`."""
    *batch, height, width, channels = images.shape
    down, across = height // size, width // size
    squares = images.reshape(*batch, down, size, across, size, channels)
    return jnp.swapaxes(squares, -4, -3).reshape(*batch, down * across, size * size * channels)


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))

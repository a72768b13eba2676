"""From images to vectors that an encoder reads like those of words."""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.config import TransformerConfig
from attention.modules.dropout import drop
from attention.modules.linear import Linear
from attention.modules.positions import SCHEMES, placed
from attention.modules.table import table


class PatchEmbedding(nnx.Module):
    """One vector for each square of an image (Dosovitskiy et al. 2021, equation 1).

    The pixels of a square are projected to D numbers; squares count from the upper left corner,
    row by row, and positions are added as they are to tokens.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        image_shape: Sequence[int],
        patch_size: int,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the projection, and a table of positions if they are learned.

        Args:
            config: of the encoder that will read the vectors.
            image_shape: height, width and channels.
            patch_size: pixels on a side of a square; must divide height and width.
            rngs: source of the initial parameters.

        Raises:
            ValueError: squares that do not fill the image, or more of them than `max_length`.
        """
        height, width, channels = image_shape
        if patch_size < 1 or height % patch_size or width % patch_size:
            raise ValueError(
                f"patches of {patch_size}x{patch_size} pixels do not fill an image of "
                f"{height}x{width}: patch_size must divide both sides"
            )
        num_patches = (height // patch_size) * (width // patch_size)
        if num_patches > config.max_length:
            raise ValueError(
                f"an image of {num_patches} patches is longer than max_length={config.max_length}"
            )
        self.projection = Linear(
            patch_size * patch_size * channels, config.width, use_bias=config.use_bias, rngs=rngs
        )
        self.positions = table(SCHEMES[config.positions].add_table(config), config.width, rngs=rngs)
        self.kind = config.positions
        self.image_shape = height, width, channels
        self.patch_size = patch_size
        self.dropout = config.dropout

    def __call__(self, images: Array, *, key: Array | None = None) -> Array:
        """Maps images `[..., height, width, channels]` to vectors `[..., S, D]`.

        Args:
            images: floats.
            key: random key for dropout, none without.

        Raises:
            ValueError: images of another shape than that of `__init__`.
        """
        if images.shape[-3:] != self.image_shape:
            raise ValueError(
                f"images must be {_by(self.image_shape)} (height x width x channels), "
                f"got {_by(images.shape[-3:])}"
            )
        vectors = self.projection(patches(images, self.patch_size))
        return drop(placed(vectors, self.kind, self.positions), self.dropout, key)


def patches(images: Array, size: int) -> Array:
    """Cuts images `[..., height, width, channels]` into flat squares `[..., S, size²·channels]`."""
    *batch, height, width, channels = images.shape
    down, across = height // size, width // size
    squares = images.reshape(*batch, down, size, across, size, channels)
    return jnp.swapaxes(squares, -4, -3).reshape(*batch, down * across, size * size * channels)


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))

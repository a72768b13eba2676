"""From a mask and positions to a dense bool array."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments, check_arguments
from attention.primitives.masks import Lengths, Mask, leaves_of, to_array


def dense_mask(arguments: Arguments) -> Array | None:
    """Return the mask as bool `[..., N or 1, T or 1, S or 1]`, or None if all keys are visible.

    Args:
        arguments: with any batch axes; the mask may have fewer.
    """
    if arguments.mask is None:
        return None
    positions = arguments.query_positions, arguments.key_positions
    return to_array(arguments.mask, *positions)[..., None, :, :]


def visible_keys(mask: Mask | None, batch: Sequence[int], num_keys: int) -> Array | None:
    """Return the keys that are visible to every query: bool `[..., S]`, or None for all.

    For readers without queries, such as a recurrent cell.

    Args:
        mask: `masks.lengths`, or an expression of such masks.
        batch: the batch axes.
        num_keys: S.

    Raises:
        ValueError: any other mask.
    """
    if mask is None:
        return None
    if not isinstance(mask, Mask) or not all(isinstance(leaf, Lengths) for leaf in leaves_of(mask)):
        raise ValueError(
            "this mask depends on the position of the query; here it can only hide padding, the "
            "same for all queries, as masks.lengths does"
        )
    tokens = jnp.zeros((*batch, num_keys, 1, 1))
    arguments = check_arguments(tokens[..., :1, :, :], tokens, tokens, mask=mask)
    allowed = to_array(mask, arguments.query_positions, arguments.key_positions)
    return jnp.broadcast_to(allowed[..., 0, :], (*batch, num_keys))

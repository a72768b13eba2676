"""Scores inside a kernel, which has no gathers: their numbers come picked for the head."""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives import scores
from attention.primitives.pytree_dataclass import array_field, pytree_dataclass, static
from attention.primitives.scores import Score


@pytree_dataclass
class HeadAlibi(Score):
    """`scores.alibi` with the slope of one head, or `[B, N, 1]` before one is picked."""

    slope: Any

    def __call__(
        self, scores: Array, query_position: ArrayLike, key_position: ArrayLike, head: ArrayLike
    ) -> Array:
        """Lowers scores by the distance times the slope."""
        del head
        distance = jnp.abs(jnp.subtract(query_position, key_position))
        return scores - self.slope * distance.astype(scores.dtype)


def score_refusal(score: Score) -> str | None:
    """Why a kernel cannot evaluate a score; None if it can."""
    match score:
        case scores._Softcap() | scores._Alibi():
            return None
        case _:
            return "of the scores it evaluates softcap and alibi alone"


def for_heads(score: Score, batch: tuple[int, ...]) -> Score:
    """The score with its arrays, if it has any, as float32 `[B, N, 1]`."""
    if not isinstance(score, scores._Alibi):
        return score
    num_heads = score.slopes.shape[-1]
    slopes = jnp.broadcast_to(score.slopes.astype(jnp.float32), (*batch, num_heads))
    return HeadAlibi(slopes.reshape(-1, num_heads, 1))

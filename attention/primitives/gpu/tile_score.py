"""Score functions inside a kernel, which has no gathers: the entry of the head is an operand."""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.primitives import scores
from attention.primitives.pytree_dataclass import array_field, pytree_dataclass
from attention.primitives.scores import Score


@pytree_dataclass
class HeadAlibi(Score):
    """`scores.alibi` with the slope of one head: `[B, N, 1]` outside the kernel, `[]` inside."""

    slope: Any = array_field(rank=0)

    def __call__(
        self, scores: Array, query_position: ArrayLike, key_position: ArrayLike, head: ArrayLike
    ) -> Array:
        """Subtract the distance times the slope."""
        del head
        distance = jnp.abs(jnp.subtract(query_position, key_position))
        return scores - self.slope * distance.astype(scores.dtype)


def score_refusal(score: Score) -> str | None:
    """Return why a kernel cannot evaluate a score function; None if it can."""
    match score:
        case scores.Softcap() | scores.Alibi():
            return None
        case _:
            return "its kernels evaluate the score functions softcap and alibi only"


def to_head_score(score: Score, batch: tuple[int, ...], num_heads: int) -> Score:
    """Return the score function with its entries for all heads, float32 `[B, N, 1]`."""
    if not isinstance(score, scores.Alibi):
        return score
    slopes = score.slopes.astype(jnp.float32)
    slopes = jnp.broadcast_to(slopes, (*batch, num_heads))
    return HeadAlibi(slopes.reshape(-1, num_heads, 1))

"""Attention sinks: what a softmax loses to keys without a value."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jax import Array

from attention.primitives.scores import AttentionSinks


def share_with_sinks(
    found: Mapping[str, Array], sinks: Sequence[AttentionSinks]
) -> dict[str, Array]:
    """Gives the sinks their share of the sum of each softmax.

    A key whose value is 0 only adds to the sum that everything is divided by, so it can be added
    when all else is done: output and weights shrink by the same factor.

    Args:
        found: "output" `[..., T, N, Hv]`, "logsumexp" `[..., N, T]` and perhaps "weights"
            `[..., N, T, S]`, without sinks.
        sinks: any number.
    """
    found = dict(found)
    for sink in sinks:
        before = found["logsumexp"]
        empty = jnp.isneginf(before)  # who may see nothing gives nothing to a sink
        visible = jnp.where(empty, 0, before)
        logit = jnp.broadcast_to(sink.logits[..., None], before.shape).astype(before.dtype)
        after = jnp.logaddexp(visible, logit)
        share = jnp.exp(visible - after)
        found["logsumexp"] = jnp.where(empty, before, after)
        output = found["output"]
        factor = jnp.swapaxes(share, -1, -2)[..., None]
        found["output"] = (output.astype(before.dtype) * factor).astype(output.dtype)
        if "weights" in found:
            found["weights"] = found["weights"] * share[..., None]
    return found

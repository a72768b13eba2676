"""Arguments and results that are common to every layer of every stack."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jax import Array

from attention.primitives.masks import Mask
from attention.primitives.pytree_dataclass import pytree_dataclass, static
from attention.primitives.scores import Score

AxisNames = tuple[str | None, ...]


def unconstrained(array: Array, axes: AxisNames) -> Array:
    """Return the array as it is: no sharding is requested."""
    del axes
    return array


@pytree_dataclass
class Context:
    """Arguments that a stack passes to every sublayer beside its inputs `[..., T, D]`.

    Attributes:
        mask: of self-attention, as in `attention.attend`; a decoder has added the causal mask.
        score: score functions of the self-attention of every layer, such as ALiBi.
        positions: int32 `[..., T]`, of the inputs; counted from 0 if None.
        lengths: int `[...]`, with a cache: number of valid tokens per row; T if None.
        encoder_output: `[..., S, D]`, attended to by cross-attention.
        encoder_mask: of cross-attention, as in `attention.attend`.
        encoder_positions: int32 `[..., S]`, of the encoder output; counted from 0 if None.
        rng: random key of dropout; None turns dropout off.
        cache: state of this layer between decoding steps; None in training.
        returning: results of attention to return, as in `attention.attend`, and "hidden_states".
        constrain: `(array, names of its axes) -> array`, which may request a sharding.
    """

    mask: Mask | Array | None = None
    score: tuple[Score, ...] = ()
    positions: Array | None = None
    lengths: Array | None = None
    encoder_output: Any = None
    encoder_mask: Mask | Array | None = None
    encoder_positions: Array | None = None
    rng: Array | None = None
    cache: Any = None
    returning: tuple[str, ...] = static(default=())
    constrain: Callable[[Array, AxisNames], Array] = static(default=unconstrained)


class Output(NamedTuple):
    """Result of a layer, a stack or a model.

    Attributes:
        features: `[..., T, D]`.
        attention: results named in `returning`: of attention `{name: array}`, of a block
            `{sublayer: {name: array}}`, of a stack a tuple with one entry per layer.
        hidden_states: `[..., T, D]` each: inputs of the first layer and outputs of every layer,
            if "hidden_states" is in `returning`.
        cache: the new cache, if one was given.
        losses: auxiliary losses by name, summed over the layers.
        logits: `[..., T, V]`, of a model that scores a vocabulary or classes.
    """

    features: Array
    attention: Any = None
    hidden_states: tuple[Array, ...] = ()
    cache: Any = None
    losses: Mapping[str, Array] = {}  # noqa: RUF012 - an empty mapping, which nothing changes
    logits: Array | None = None

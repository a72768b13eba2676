"""Loss of a model whose attention weights are replaced by uniform or by permuted ones.

Where the loss does not rise, the model does not need the weights that it computes (Jain and Wallace
2019; Wiegreffe and Pinter 2019).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention import scores
from attention.modules import Attention, Context, Output
from attention.modules.context import DEFAULT_CONTEXT
from experiments.analysis.collect import CROSS, DECODER, ENCODER, title_of

if TYPE_CHECKING:
    from experiments.learner import TrainState
    from experiments.tasks.task import Task

KINDS = ENCODER, DECODER, CROSS
TINY = 1e-30  # in place of weights of 0, which have no logarithm

Replacement = Callable[[Array], Array]  # of weights `[..., N, T, S]`


def uniform(weights: Array) -> Array:
    """Return equal weights for the keys whose weight is not 0."""
    visible = (weights > 0).astype(weights.dtype)
    return visible / jnp.maximum(visible.sum(axis=-1, keepdims=True), 1)


def permuted(weights: Array, rng: Array) -> Array:
    """Return the weights of each query in random order, among the keys whose weight is not 0."""
    visible = weights > 0
    random = jnp.where(visible, jax.random.uniform(rng, weights.shape), jnp.inf)
    shuffled = jnp.take_along_axis(weights, jnp.argsort(random, axis=-1), axis=-1)
    rank = jnp.cumsum(visible, axis=-1) - 1  # of a visible key among the visible ones
    return jnp.where(visible, jnp.take_along_axis(shuffled, jnp.maximum(rank, 0), axis=-1), 0)


class ReplacedWeights(nnx.Module):
    """Self- or cross-attention with other weights than those that it computes."""

    def __init__(self, attention: nnx.Module, replacement: Replacement) -> None:
        """Wrap a layer."""
        self.attention, self.replacement = attention, replacement

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map inputs `[..., T, D]` to `[..., T, D]`."""
        own = self.attention(inputs, context=replace(context, returning=("weights",)))
        logs = jnp.log(jnp.maximum(self.replacement(own.attention["weights"]), TINY))
        # Without products of queries and keys, the softmax of logarithms is the weights themselves.
        attention = nnx.merge(*nnx.split(self.attention))
        attention.scale, attention.softcap = 0.0, None
        attention.score = lambda: scores.bias_array(logs)
        return attention(inputs, context=replace(context, score=()))


class ReplacedRecurrentWeights(ReplacedWeights):
    """`AdditiveAttention` of a recurrent decoder with other weights than those that it computes."""

    def precompute(self, encoder_output: Array) -> Any:  # noqa: ANN401 - any pytree
        """Return what the attention computes once."""
        return self.attention.precompute(encoder_output)

    def __call__(
        self, state: Array, precomputed: object, returning: Sequence[str] = (), **options: object
    ) -> Array | tuple[Array, dict[str, Array]]:
        """Compute the context `[..., 1, 1, C]` of a state."""
        _, own = self.attention(state, precomputed, returning=("weights",), **options)
        weights = self.replacement(own["weights"])  # [..., 1, 1, S]
        values = precomputed[-1] if isinstance(precomputed, tuple) else precomputed  # [..., S, C]
        context = weights @ values[..., None, :, :].astype(weights.dtype)
        context = context.astype(values.dtype)
        return (context, {"weights": weights}) if returning else context


def _attentions(model: nnx.Module) -> Iterator[tuple[nnx.Module, str, str]]:
    """Yield the owner of every attention of a model, the name of its attribute, and its kind."""
    for path, module in [*nnx.iter_modules(model)]:
        if isinstance(getattr(module, "sublayer", None), Attention):
            kind = DECODER if "decoder" in path else ENCODER
            yield module, "sublayer", CROSS if "cross_attention" in path else kind
        elif hasattr(getattr(module, "attention", None), "precompute"):
            yield module, "attention", CROSS


def replace_weights(model: nnx.Module, replacements: Mapping[str, Replacement]) -> None:
    """Replace the weights of every layer in place, by kind: "encoder", "decoder" or "cross".

    Layers are `Attention` in a residual connection, or the attention of a recurrent decoder.
    """
    for owner, name, kind in _attentions(model):
        replaced = ReplacedWeights if name == "sublayer" else ReplacedRecurrentWeights
        setattr(owner, name, replaced(getattr(owner, name), replacements[kind]))


def loss_table(task: "Task", state: "TrainState", split: str) -> list[dict[str, Any]]:
    """Return a row for each kind: how much the loss of a split rises, in nats per token.

    The weights of one kind are replaced in all its layers and heads; the other kinds compute theirs
    from the changed vectors. One program serves all: the way is an argument.
    """

    def sums(model: nnx.Module, batch: Any, ways: Mapping[str, Array], rng: Array) -> Any:  # noqa: ANN401 - a batch of any task
        branches = [lambda weights: weights, uniform, partial(permuted, rng=rng)]
        chosen = {kind: partial(jax.lax.switch, way, branches) for kind, way in ways.items()}
        replace_weights(model, chosen)
        losses, _ = task.loss(model, batch, None)
        return losses.nll, losses.tokens

    program, batches = task.learner.apply(sums), [*task.batches(split)]

    def loss(**ways: int) -> float:
        chosen = {kind: jnp.int32(ways.get(kind, 0)) for kind in KINDS}
        nll = tokens = 0
        for number, batch in enumerate(batches):
            losses = program(state.parameters, batch, chosen, jax.random.key(number))
            nll, tokens = nll + losses[0], tokens + losses[1]
        return float(nll / tokens)

    own = loss()
    kinds = {kind for _, _, kind in _attentions(task.learner.abstract_model)}
    return [
        {
            "attention": title_of(kind),
            "loss": own,
            "rise with uniform weights": loss(**{kind: 1}) - own,
            "rise with permuted weights": loss(**{kind: 2}) - own,
        }
        for kind in KINDS
        if kind in kinds
    ]

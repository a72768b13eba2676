"""One step of training, a pure function from state and batch to state and metrics."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from experiments.compilation import compiled
from experiments.training.loss import TokenLosses, per_token

Batch = TypeVar("Batch")
# (model, batch, dropout key or None) -> sums of losses
LossFunction = Callable[[Any, Batch, Array | None], TokenLosses]


class TrainState(NamedTuple):
    """All that changes while training.

    Attributes:
        step: how many steps were taken, int32.
        parameters: of the model, as `flax.nnx.split` returns them.
        optimizer: the optimizer's own memory.
        key: what the randomness of each step is derived from; constant.
    """

    step: Array
    parameters: nnx.State
    optimizer: optax.OptState
    key: Array


def make_steps(
    definition: nnx.GraphDef,
    loss_function: LossFunction[Batch],
    optimizer: optax.GradientTransformation,
) -> tuple[
    Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]],
    Callable[[nnx.State, Batch], TokenLosses],
]:
    """The jitted training step and evaluation step of a model.

    Args:
        definition: the model without its parameters.
        loss_function: sums the losses of a batch.
        optimizer: turns gradients into updates.

    Returns:
        `train_step(state, batch) -> state, metrics`, which reuses the memory of the state it is
        given, and `evaluate_step(parameters, batch) -> sums`, without dropout.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        def mean_loss(parameters: nnx.State) -> tuple[Array, TokenLosses]:
            key = jax.random.fold_in(state.key, state.step)
            sums = loss_function(nnx.merge(definition, parameters), batch, key)
            return sums.loss / jnp.maximum(sums.tokens, 1), sums

        gradients, sums = jax.grad(mean_loss, has_aux=True)(state.parameters)
        updates, memory = optimizer.update(gradients, state.optimizer, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        metrics = per_token(sums) | {"gradient_norm": optax.tree.norm(gradients)}
        return TrainState(state.step + 1, parameters, memory, state.key), metrics

    def evaluate_step(parameters: nnx.State, batch: Batch) -> TokenLosses:
        return loss_function(nnx.merge(definition, parameters), batch, None)

    return compiled(train_step, donate=(0,)), compiled(evaluate_step)

"""One step of training, a pure function from state and batch to state and metrics."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from experiments.compilation import compiled
from experiments.training.loss import TokenLosses, add_auxiliary, per_token
from experiments.training.sharding import accumulated, on_one_device

Batch = TypeVar("Batch")
# (model, batch, random key of dropout or None) -> sums of losses, `Output.losses` of the model
LossFunction = Callable[[Any, Batch, Array | None], tuple[TokenLosses, Mapping[str, Array]]]


class TrainState(NamedTuple):
    """All that changes while training.

    Attributes:
        step: how many steps were taken, int32.
        parameters: of the model, as `flax.nnx.split` returns them.
        average: their exponential moving average; None if none is kept.
        optimizer: the optimizer's own memory.
        slowdown: what updates are multiplied by, below 1 once the validation loss stalls.
        rng: random key from which that of each step is derived; constant.
    """

    step: Array
    parameters: nnx.State
    average: nnx.State | None
    optimizer: optax.OptState
    slowdown: Array
    rng: Array

    def to_use(self) -> Self:
        """On one device, with the parameters that are measured: their average, if one is kept."""
        state = self if self.average is None else self._replace(parameters=self.average)
        return on_one_device(state)


def make_steps(
    definition: nnx.GraphDef,
    loss_function: LossFunction[Batch],
    optimizer: optax.GradientTransformation,
    *,
    dtype: jnp.dtype = jnp.float32,
    microbatches: int = 1,
    decay: float = 0.0,
) -> tuple[
    Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]],
    Callable[[nnx.State, Batch], TokenLosses],
]:
    """The jitted training step and evaluation step of a model.

    Args:
        definition: the model without its parameters.
        loss_function: sums the losses of a batch; the auxiliary losses of the model are added to
            the objective in training, and are reported by name.
        optimizer: turns gradients into updates.
        dtype: what the model computes in while it trains; parameters, their gradients and the
            optimizer stay what they are.
        microbatches: parts of a batch whose gradients are added up, so that the activations of one
            part stand in the memory of a device at a time.
        decay: of the average of the parameters, if one is kept.

    Returns:
        `train_step(state, batch) -> state, metrics`, which reuses the memory of the state it is
        given, `replicated` for so many parts; and `evaluate_step(parameters, batch) -> sums`,
        without dropout.
    """

    def summed(parameters: nnx.State, batch: Batch, rng: Array) -> tuple[Array, TokenLosses]:
        model = nnx.merge(definition, cast(parameters, dtype))
        sums, losses = loss_function(model, cast(batch, dtype), rng)  # images too
        sums = add_auxiliary(sums, losses, to_objective=True)
        return sums.loss, sums

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        rng = jax.random.fold_in(state.rng, state.step)
        gradient = jax.grad(summed, has_aux=True)
        gradients, sums = accumulated(gradient, state.parameters, batch, rng, microbatches)
        gradients = optax.tree.scale(1 / jnp.maximum(sums.tokens, 1), gradients)
        updates, memory = optimizer.update(gradients, state.optimizer, state.parameters)
        updates = optax.tree.scale(state.slowdown, updates)
        parameters = optax.apply_updates(state.parameters, updates)
        metrics = per_token(sums) | {"gradient_norm": optax.tree.norm(gradients)}
        state = state._replace(step=state.step + 1, parameters=parameters, optimizer=memory)
        return state._replace(average=moved(state, decay)), metrics

    def evaluate_step(parameters: nnx.State, batch: Batch) -> TokenLosses:
        sums, losses = loss_function(nnx.merge(definition, parameters), batch, None)
        return add_auxiliary(sums, losses, to_objective=False)

    return compiled(train_step, donate=(0,)), compiled(evaluate_step)


def cast(tree: Any, dtype: jnp.dtype) -> Any:  # noqa: ANN401 - any pytree
    """Arrays in another precision; what is no floating-point number stays."""
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        tree,
    )


def moved(state: TrainState, decay: float) -> nnx.State | None:
    """The average of a state, moved towards its parameters.

    Young averages move faster: of the one before step t, min(decay, t / (9 + t)) is kept, so that
    the first parameters are soon forgotten.
    """
    if state.average is None:
        return None
    keep = jnp.minimum(decay, state.step / (9 + state.step))
    return optax.incremental_update(state.parameters, state.average, 1 - keep)

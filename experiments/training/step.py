"""One step of training: a pure function from state and batch to state and metrics."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.devices import compiled
from experiments.losses import TokenLosses, add_auxiliary, per_token
from experiments.sharding import accumulated, gather_tables, shard_rows

Batch = TypeVar("Batch")
# (model, batch, random key of dropout or None) -> sums of losses, `Output.losses` of the model
LossFunction = Callable[[Any, Batch, Array | None], tuple[TokenLosses, Mapping[str, Array]]]


class TrainState(NamedTuple):
    """Everything that changes in training.

    Attributes:
        step: number of steps taken, int32.
        parameters: of the model, as `flax.nnx.split` returns them.
        average: their exponential moving average; None without one.
        optimizer: state of the optimizer.
        rng: random key from which that of each step is derived; constant.
    """

    step: Array
    parameters: nnx.State
    average: nnx.State | None
    optimizer: optax.OptState
    rng: Array

    def to_use(self) -> Self:
        """Return the state with the average of the parameters, if there is one, in their place."""
        return self if self.average is None else self._replace(parameters=self.average)


def make_steps(
    definition: nnx.GraphDef,
    loss_function: LossFunction[Batch],
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    *,
    mesh: Mesh,
    state_shardings: TrainState,
    dtype: jnp.dtype = jnp.float32,
    microbatches: int = 1,
    decay: float = 0.0,
    skips_nonfinite: bool = False,
) -> tuple[
    Callable[..., tuple[TrainState, dict[str, Array]]],
    Callable[[nnx.State, Batch], TokenLosses],
]:
    """Return the jitted training step and evaluation step of a model.

    Args:
        definition: the model without its parameters.
        loss_function: sums the losses of a batch; the auxiliary losses of the model are added to
            the objective in training, and are reported by name.
        optimizer: turns gradients into updates.
        schedule: learning rate of each step, which the metrics contain.
        mesh: of the devices.
        state_shardings: of the state after a step.
        dtype: of the computation in training; parameters, gradients and optimizer keep theirs.
        microbatches: parts of a batch whose gradients are added up, so that a device holds the
            activations of one part at a time.
        decay: of the average of the parameters, if there is one.
        skips_nonfinite: whether a step with a loss or a gradient that is not finite leaves
            parameters, average and moments of Adam as they are; the metrics then count it as
            "skipped".

    Returns:
        `train_step(state, batch, requests=None) -> state, metrics`, which reuses the memory of its
        state; and `evaluate_step(parameters, batch) -> sums`, without dropout. Both are one program
        on all devices of the mesh. Requests are bool `[devices, kinds]`; the metrics then contain
        the kinds that any process has set.
    """

    def model_of(stored: nnx.State) -> Any:  # noqa: ANN401 - the class is in the definition
        return nnx.merge(definition, gather_tables(stored, mesh))

    def summed(stored: nnx.State, batch: Batch, rng: Array) -> tuple[Array, TokenLosses]:
        model = model_of(cast(stored, dtype))
        sums, losses = loss_function(model, cast(batch, dtype), rng)  # images too
        sums = add_auxiliary(sums, losses, to_objective=True)
        return sums.loss, sums

    def train_step(
        state: TrainState, batch: Batch, requests: Array | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        rng = jax.random.fold_in(state.rng, state.step)
        gradient = jax.grad(summed, has_aux=True)
        gradients, sums = accumulated(gradient, state.parameters, batch, rng, microbatches, mesh)
        gradients = optax.tree.scale(1 / jnp.maximum(sums.tokens, 1), gradients)
        updates, opt_state = optimizer.update(gradients, state.optimizer, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        metrics = per_token(sums) | {
            "gradient_norm": optax.tree.norm(gradients),  # before clipping
            "learning_rate": schedule(state.step),
        }
        after = state._replace(step=state.step + 1, parameters=parameters, optimizer=opt_state)
        after = after._replace(average=moved(after, decay))
        if skips_nonfinite:
            finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["gradient_norm"])
            kept = with_schedule(state.optimizer, opt_state)
            unchanged = state._replace(step=after.step, optimizer=kept)
            after = jax.tree.map(partial(jnp.where, finite), after, unchanged)
            metrics["skipped"] = 1 - finite.astype(jnp.float32)
        if requests is not None:
            metrics["requests"] = requests.any(axis=0)
        return after, metrics

    def evaluate_step(stored: nnx.State, batch: Batch) -> TokenLosses:
        sums, losses = loss_function(model_of(stored), shard_rows(batch, mesh), None)
        return add_auxiliary(sums, losses, to_objective=False)

    replicated = NamedSharding(mesh, PartitionSpec())
    return (
        compiled(train_step, donate=(0,), out_shardings=(state_shardings, replicated)),
        compiled(evaluate_step, out_shardings=replicated),
    )


def cast(tree: Any, dtype: jnp.dtype) -> Any:  # noqa: ANN401 - any pytree
    """Convert floating-point arrays to another precision; other arrays stay as they are."""
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        tree,
    )


def with_schedule(optimizer: optax.OptState, newer: optax.OptState) -> optax.OptState:
    """Return a state of the optimizer with the step of the schedule of a newer one."""

    def is_schedule(state: Any) -> bool:  # noqa: ANN401 - any part of a state
        return isinstance(state, optax.ScaleByScheduleState)

    return jax.tree.map(
        lambda old, new: new if is_schedule(old) else old, optimizer, newer, is_leaf=is_schedule
    )


def moved(state: TrainState, decay: float) -> nnx.State | None:
    """Return the average of a state, moved towards its parameters.

    Step t keeps min(decay, t / (9 + t)) of the average, so the first parameters soon have no
    weight.
    """
    if state.average is None:
        return None
    keep = jnp.minimum(decay, state.step / (9 + state.step))
    return optax.incremental_update(state.parameters, state.average, 1 - keep)

"""A model with its loss and optimizer: the training state, and the compiled steps."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from experiments.config import Config
from experiments.data.pipeline import TrainingBatches
from experiments.errors import as_usage_errors
from experiments.losses import TokenLosses, add_auxiliary, per_token
from experiments.optimizer import optimizer, schedule
from experiments.sharding import (
    accumulated,
    compiled,
    gather_tables,
    gather_to_host,
    make_mesh,
    one_copy,
    place_rows,
    read_batch,
    rows_of_each,
    shard_rows,
    shardings,
)

Batch = TypeVar("Batch")
# (model, batch, random key of dropout or None) -> sums of losses, `Output.losses` of the model
LossFunction = Callable[[Any, Batch, Array | None], tuple[TokenLosses, Mapping[str, Array]]]


class TrainState(NamedTuple):
    """Everything that changes in training.

    Attributes:
        step: number of steps taken, int32.
        parameters: of the model, as `flax.nnx.split` returns them.
        ema: their exponential moving average; None without one.
        optimizer: state of the optimizer.
        rng: random key from which that of each step is derived; constant.
    """

    step: Array
    parameters: nnx.State
    ema: nnx.State | None
    optimizer: optax.OptState
    rng: Array

    def with_ema(self) -> Self:
        """Return the state with the moving average, if there is one, as its parameters."""
        return self if self.ema is None else self._replace(parameters=self.ema)


class Learner:
    """A model with its loss and optimizer; no parameter is allocated yet.

    Attributes:
        mesh: of the devices.
        abstract_model: the model with shapes for parameters.
        definition: the model without its parameters.
        abstract_state: shapes and shardings of a state, as in a checkpoint.
        num_parameters: of the model.
        train_step: `(state, batch, requests=None) -> state, metrics`, compiled; it reuses the
            memory of its state. Requests are bool `[devices, kinds]` of several processes; the
            metrics then contain the kinds that any process has set.
        evaluate_step: `(parameters, batch) -> TokenLosses`, compiled, without dropout.
    """

    def __init__(
        self,
        make_model: Callable[[nnx.Rngs], nnx.Module],
        loss_function: LossFunction[Batch],
        config: Config,
    ) -> None:
        """Prepare the training of a model.

        Of the config, `train`, `mesh`, `batch.microbatches` and `seed` are used.

        Raises:
            UsageError: a model that cannot be made with these sizes, or a mesh that does not fit
                the model or the devices.
        """
        self._make_model, self._loss_function, self._config = make_model, loss_function, config
        self.mesh = make_mesh(config.mesh, config)
        with as_usage_errors("model: "):
            self.abstract_model = jax.eval_shape(lambda: make_model(nnx.Rngs(0)))
        self.definition = nnx.graphdef(self.abstract_model)
        self._optimizer = optimizer(config.train, nnx.state(self.abstract_model))
        shapes = jax.eval_shape(self._make_state)
        of_state = shardings(shapes, self.mesh)
        self.abstract_state = jax.tree.map(
            lambda leaf, own: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=own),
            shapes,
            of_state,
        )
        self.num_parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes.parameters))
        replicated = NamedSharding(self.mesh, PartitionSpec())
        self._initial_state = compiled(self._make_state, out_shardings=of_state)
        self.train_step = compiled(
            self._train_step, donate_argnums=0, out_shardings=(of_state, replicated)
        )
        self.evaluate_step = compiled(self._evaluate_step, out_shardings=replicated)

    def initial_state(
        self, parameters: Mapping[tuple[Any, ...], Any] = MappingProxyType({})
    ) -> TrainState:
        """Return the state before the first step; arrays by path replace initial parameters."""
        state = self._initial_state()
        if not parameters:
            return state
        replaced = _with_arrays(state.parameters, parameters)
        ema = None if state.ema is None else _with_arrays(state.ema, parameters)
        return state._replace(parameters=replaced, ema=ema)

    def batch_reader(self, batches: TrainingBatches) -> Callable[[int], tuple[Batch, int]]:
        """Return a function that reads the batch of a training step, as in `sharding`."""
        return partial(read_batch, batches, self.mesh, self._config.batch.microbatches)

    def check(self, batch: Batch) -> None:
        """Trace the training step, before a file is written.

        Raises:
            UsageError: a loss of another shape, or an implementation of attention that cannot
                compute the model.
        """
        with as_usage_errors("model: "):
            jax.eval_shape(self.train_step, self.abstract_state, batch)

    def losses(self, parameters: nnx.State, batches: Iterable[Batch]) -> dict[str, float]:
        """Return loss and accuracy over all batches together, without dropout."""
        # One batch at a time: on a CPU, all threads could wait for the sums of several programs.
        sums = [
            jax.device_get(self.evaluate_step(parameters, place_rows(rows, self.mesh)))
            for rows in rows_of_each(batches)
        ]
        total = jax.tree.map(lambda *parts: sum(parts), *sums)
        return {name: float(value) for name, value in per_token(total).items()}

    def apply(self, method: Callable[..., Array]) -> Callable[..., Array]:
        """Compile `method(model, ...)` as a function of parameters and arrays.

        It runs on one device, unless the parameters are sharded.
        """
        program = compiled(
            lambda parameters, *arrays: method(nnx.merge(self.definition, parameters), *arrays)
        )
        return lambda parameters, *arrays: gather_to_host(program(one_copy(parameters), *arrays))

    def _make_state(self) -> TrainState:
        model_rng, step_rng = jax.random.split(jax.random.key(self._config.seed))
        parameters = nnx.state(self._make_model(nnx.Rngs(model_rng)))
        return TrainState(
            step=jnp.int32(0),
            parameters=parameters,
            ema=parameters if self._config.train.ema else None,
            optimizer=self._optimizer.init(parameters),
            rng=step_rng,
        )

    def _model(self, parameters: nnx.State) -> nnx.Module:
        return nnx.merge(self.definition, gather_tables(parameters, self.mesh))

    def _train_step(
        self, state: TrainState, batch: Batch, requests: Array | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        """One step on the sum over all tokens of a batch, or of its microbatches."""
        train, dtype = self._config.train, jnp.dtype(self._config.train.dtype)

        def objective(parameters: nnx.State, part: Batch, rng: Array) -> tuple[Array, TokenLosses]:
            model = self._model(cast(parameters, dtype))
            sums, auxiliary = self._loss_function(model, cast(part, dtype), rng)
            sums = add_auxiliary(sums, auxiliary, to_objective=True)
            return sums.loss, sums

        rng = jax.random.fold_in(state.rng, state.step)
        gradient = partial(jax.grad(objective, has_aux=True), state.parameters)
        parts = self._config.batch.microbatches
        gradients, sums = accumulated(gradient, batch, rng, parts, self.mesh)
        gradients = optax.tree.scale(1 / jnp.maximum(sums.tokens, 1), gradients)
        updates, moments = self._optimizer.update(gradients, state.optimizer, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        metrics = per_token(sums) | {
            "gradient_norm": optax.tree.norm(gradients),  # before clipping
            "learning_rate": schedule(train)(state.step),
        }
        after = state._replace(step=state.step + 1, parameters=parameters, optimizer=moments)
        after = after._replace(ema=ema_update(after, train.ema))
        if train.skip_nonfinite:
            metrics["skipped"] = moments.notfinite_count
        if requests is not None:
            metrics["requests"] = requests.any(axis=0)
        return after, metrics

    def _evaluate_step(self, parameters: nnx.State, batch: Batch) -> TokenLosses:
        rows = shard_rows(batch, self.mesh)
        sums, auxiliary = self._loss_function(self._model(parameters), rows, None)
        return add_auxiliary(sums, auxiliary, to_objective=False)


def cast(tree: Any, dtype: jnp.dtype) -> Any:  # noqa: ANN401 - any pytree
    """Convert floating-point arrays to another precision; other arrays stay as they are."""
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        tree,
    )


def ema_update(state: TrainState, decay: float) -> nnx.State | None:
    """Return the moving average of the parameters after a step.

    Step t keeps min(decay, t / (9 + t)) of the average, so the first parameters soon have no
    weight.
    """
    if state.ema is None:
        return None
    keep = jnp.minimum(decay, state.step / (9 + state.step))
    return optax.incremental_update(state.parameters, state.ema, 1 - keep)


def _with_arrays(tree: nnx.State, arrays: Mapping[tuple[Any, ...], Any]) -> nnx.State:
    """Replace some parameters; each is copied, since the training step reuses their memory."""
    flat = dict(nnx.to_flat_state(tree))
    for path, array in arrays.items():
        old = flat[path][...]
        array = jax.device_put(array, old.sharding, may_alias=False)
        flat[path] = flat[path].replace(array.astype(old.dtype))
    return nnx.from_flat_state(flat)

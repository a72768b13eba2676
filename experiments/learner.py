"""A model with its loss and optimizer: the training state, and the compiled steps."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial, reduce
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from experiments import sharding
from experiments.config import Config
from experiments.config.parts import TrainPart
from experiments.errors import as_usage_errors
from experiments.losses import TokenLosses, per_token
from experiments.sharding import compiled, gather_to_host

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

    def with_arrays(self, arrays: Mapping[tuple[Any, ...], Any]) -> Self:
        """Replace parameters, and their average, by copies of the arrays at these paths."""

        def replaced(path: tuple[Any, ...], old: nnx.Variable) -> nnx.Variable:
            if path not in arrays:
                return old
            # The training step reuses the memory of its state.
            array = jax.device_put(arrays[path], old[...].sharding, may_alias=False)
            return old.replace(array.astype(old.dtype))

        ema = None if self.ema is None else nnx.map_state(replaced, self.ema)
        return self._replace(parameters=nnx.map_state(replaced, self.parameters), ema=ema)


def schedule(config: TrainPart) -> optax.Schedule:
    """Return the learning rate of each step: a linear rise from 0, then a fall of the named form.

    "linear" and "cosine" reach 0 at the last step; "inverse_sqrt" falls with 1/√step (Vaswani et
    al. 2017, equation 3); "constant" stays.
    An extended run continues with the schedule of its new length, so a rate that has fallen to 0
    rises again.
    """
    peak, rise = config.learning_rate, config.warmup_steps
    fall = config.steps - rise
    falls = {
        "constant": optax.constant_schedule(peak),
        "linear": optax.linear_schedule(peak, 0.0, fall),
        "cosine": optax.cosine_decay_schedule(peak, fall),
        "inverse_sqrt": lambda step: (  # computed, with a step below 0, in the warm-up too
            peak * (max(rise, 1) / (max(rise, 1) + jnp.maximum(step, 0))) ** 0.5
        ),
    }
    warmup = optax.linear_schedule(0.0, peak, rise)
    return optax.join_schedules([warmup, falls[config.schedule]], [rise])


def optimizer(config: TrainPart, parameters: nnx.State) -> optax.GradientTransformation:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019) on clipped gradients.

    Without weight decay it is Adam (Kingma and Ba 2015). Biases, norms and embeddings do not decay
    unless `config.decay_all`; the vector of a class token does. In modules of others they are known
    by their names and axes. With `config.skip_nonfinite`, a gradient that is not finite changes
    nothing. Parameters may be shapes.
    """

    def decays(path: tuple[Any, ...], parameter: nnx.Variable) -> bool:
        # The metadata "axes" names the axes of a parameter without that of stacked layers.
        axes = parameter.get_metadata().get("axes", (None,) * parameter.ndim)
        kept = "bias", "scale", "table", "embedding", "vocab", "token_types"
        return len(axes) > 1 and path[-1] not in kept and axes[0] not in kept

    adam = optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            schedule(config),
            b1=config.beta1,
            b2=config.beta2,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            mask=None if config.decay_all else nnx.map_state(decays, parameters),
        ),
    )
    return optax.apply_if_finite(adam, config.skip_nonfinite) if config.skip_nonfinite else adam


class Learner:
    """A model with its loss and optimizer; no parameter is allocated yet.

    Attributes:
        mesh: of the devices.
        abstract_model: the model with shapes for parameters.
        definition: the model without its parameters.
        abstract_state: shapes and shardings of a state, as in a checkpoint.
        num_parameters: of the model.
        initial_state: `() -> state` before the first step, compiled.
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
        self.mesh = sharding.make_mesh(config.mesh, config)
        with as_usage_errors("model: "):
            self.abstract_model = jax.eval_shape(lambda: make_model(nnx.Rngs(0)))
        self.definition = nnx.graphdef(self.abstract_model)
        self._optimizer = optimizer(config.train, nnx.state(self.abstract_model))
        shapes = jax.eval_shape(self._make_state)
        of_state = sharding.shardings(shapes, self.mesh)
        self.abstract_state = jax.tree.map(lambda x, own: x.update(sharding=own), shapes, of_state)
        self.state_bytes = sum(map(_bytes_on_a_device, jax.tree.leaves(self.abstract_state)))
        self.num_parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes.parameters))
        whole = NamedSharding(self.mesh, PartitionSpec())
        self.initial_state = compiled(self._make_state, out_shardings=of_state)
        self.train_step = compiled(
            self._train_step, donate_argnums=0, out_shardings=(of_state, whole)
        )
        self.evaluate_step = compiled(self._sums, out_shardings=whole)

    def losses(self, parameters: nnx.State, batches: Iterable[Batch]) -> dict[str, float]:
        """Return loss and accuracy over all batches together, without dropout."""
        # One batch at a time: on a CPU, all threads could wait for the sums of several programs.
        sums = [
            jax.device_get(self.evaluate_step(parameters, sharding.place_rows(rows, self.mesh)))
            for rows in sharding.rows_of_each(batches)
        ]
        return {name: float(v) for name, v in per_token(reduce(optax.tree.add, sums)).items()}

    def apply(self, method: Callable[..., Array]) -> Callable[..., Array]:
        """Compile `method(model, ...)` as a function of parameters and arrays.

        It runs on one device, unless the parameters are sharded.
        """
        program = compiled(
            lambda parameters, *arrays: method(nnx.merge(self.definition, parameters), *arrays)
        )
        return lambda tree, *arrays: gather_to_host(program(sharding.one_copy(tree), *arrays))

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

    def _train_step(
        self, state: TrainState, batch: Batch, requests: Array | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        """One step on the sum over all tokens of a batch, or of its microbatches."""
        train, parts = self._config.train, self._config.batch.microbatches
        narrow = partial(as_dtype, dtype=jnp.dtype(train.dtype))

        def objective(parameters: nnx.State, part: Batch, rng: Array) -> tuple[Array, TokenLosses]:
            sums = self._sums(*jax.tree.map(narrow, (parameters, part)), rng)
            return sums.loss, sums

        parameters, rng = state.parameters, jax.random.fold_in(state.rng, state.step)
        gradient = partial(jax.grad(objective, has_aux=True), parameters)
        gradients, sums = sharding.accumulated(gradient, batch, rng, parts, self.mesh)
        gradients = optax.tree.scale(1 / jnp.maximum(sums.tokens, 1), gradients)
        metrics = per_token(sums) | {
            "gradient_norm": optax.tree.norm(gradients),  # before clipping
            "learning_rate": schedule(train)(state.step),
        }
        updates, moments = self._optimizer.update(gradients, state.optimizer, parameters)
        parameters, step = optax.apply_updates(parameters, updates), state.step + 1
        ema = state.ema
        if ema is not None:
            # Step t keeps t / (9 + t) at most, so the first parameters soon have no weight.
            keep = jnp.minimum(train.ema, step / (9 + step))
            ema = optax.incremental_update(parameters, ema, 1 - keep)
        if train.skip_nonfinite:
            metrics["skipped"] = moments.notfinite_count
        if requests is not None:
            metrics["requests"] = requests.any(axis=0)
        return TrainState(step, parameters, ema, moments, state.rng), metrics

    def _sums(self, parameters: nnx.State, batch: Batch, rng: Array | None = None) -> TokenLosses:
        """Sum the losses of a batch; `loss` contains those of sublayers in training alone.

        Those are means over a batch, such as the balance loss of a mixture of experts, so they are
        weighted by its tokens.
        """
        model = nnx.merge(self.definition, sharding.gather_tables(parameters, self.mesh))
        sums, losses = self._loss_function(model, sharding.shard_rows(batch, self.mesh), rng)
        auxiliary = {name: loss * sums.tokens for name, loss in losses.items()}
        total = sums.loss if rng is None else sum(auxiliary.values(), sums.loss)
        return sums._replace(loss=total, auxiliary=auxiliary)


def _bytes_on_a_device(leaf: jax.ShapeDtypeStruct) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def as_dtype(array: Array, dtype: jnp.dtype) -> Array:
    """Convert an array of floating-point numbers to another precision."""
    return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

"""A model, its loss and its optimizer, without parameters."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax
from flax import nnx
from jax import Array
from jax.sharding import Mesh

from experiments.config import Config
from experiments.data.pipeline import TrainingBatches
from experiments.devices import compiled
from experiments.errors import as_usage_errors
from experiments.losses import per_token
from experiments.optimizer import optimizer, schedule
from experiments.processes import gather_to_host
from experiments.sharding import (
    batch_reader,
    fewest_rows,
    make_mesh,
    one_copy,
    place_rows,
    rows_of_each,
    shardings,
)
from experiments.training.flops import matrix_flops
from experiments.training.interruption import stop_point
from experiments.training.step import Batch, LossFunction, TrainState, make_steps


class Learner:
    """A model, its loss and its optimizer: no parameter is allocated yet.

    Attributes:
        mesh: of the devices.
        abstract_model: the model with shapes for parameters.
        definition: the model without its parameters.
        initial_state: `(parameters={}) -> TrainState`, before the first step, with these parameters
            by path in place of initial ones. Each device computes its shards alone.
        abstract_state: its shapes and shardings.
        num_parameters: of the model.
        train_step: of `make_steps`.
        evaluate_step: of `make_steps`.
    """

    def __init__(
        self,
        make_model: Callable[[nnx.Rngs], nnx.Module],
        loss_function: LossFunction[Batch],
        config: Config,
    ) -> None:
        """Prepare the training of a model.

        Args:
            make_model: builds it with its initial parameters.
            loss_function: as in `make_steps`.
            config: `train`, `mesh`, `batch.microbatches`, `seed` and `model.implementation`.

        Raises:
            UsageError: a model that cannot be made with these sizes, or a mesh that does not fit
                the model or the devices.
        """
        train, self.mesh = config.train, make_mesh(config.mesh, fewest_rows(config))
        self._microbatches = config.batch.microbatches
        self._implementation = getattr(config.model, "implementation", None)
        with as_usage_errors("model: "):
            self.abstract_model = jax.eval_shape(lambda: make_model(nnx.Rngs(0)))
        optimizing = optimizer(train, nnx.state(self.abstract_model))

        def make_state() -> TrainState:
            model_rng, step_rng = jax.random.split(jax.random.key(config.seed))
            parameters = nnx.state(make_model(nnx.Rngs(model_rng)))
            return TrainState(
                step=jax.numpy.int32(0),
                parameters=parameters,
                average=parameters if train.ema else None,
                optimizer=optimizing.init(parameters),
                rng=step_rng,
            )

        self.definition = nnx.graphdef(self.abstract_model)
        shapes = jax.eval_shape(make_state)
        self.abstract_state = _with_shardings(shapes, self.mesh)
        of_state = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)

        initial_state = compiled(make_state, out_shardings=of_state)

        def start(parameters: Mapping[Any, Any] = MappingProxyType({})) -> TrainState:
            return _with_parameters(initial_state(), parameters)

        self.initial_state = start
        self.num_parameters = sum(x.size for x in jax.tree.leaves(self.abstract_state.parameters))
        self._flops: dict[tuple[Any, ...], int] = {}
        self.train_step, self.evaluate_step = make_steps(
            self.definition,
            loss_function,
            optimizing,
            schedule(train),
            mesh=self.mesh,
            state_shardings=of_state,
            dtype=jax.numpy.dtype(train.dtype),
            microbatches=self._microbatches,
            decay=train.ema,
            skips_nonfinite=train.skip_nonfinite > 0,
        )

    def batch_reader(self, batches: TrainingBatches) -> Callable[[int], tuple[Batch, int]]:
        """Return a function that reads the batch of a training step, as in `sharding`."""
        return batch_reader(batches, self.mesh, multiple=self._microbatches)

    def trace(self, batch: Batch) -> None:
        """Trace the loss, and the training step if the config names an implementation of attention.

        Without a name, an implementation that can compute the model is chosen.

        Raises:
            UsageError: a loss of another shape, or an implementation that cannot compute the model.
        """
        if self._implementation is None:
            self._padded_flops(batch)  # traces the loss, and the loop needs the number
            return
        with as_usage_errors("model: "):
            jax.eval_shape(self.train_step, self.abstract_state, batch)

    def flops(self, batch: Batch, num_rows: int) -> float:
        """Return the FLOPs of a training step: three times those of a forward pass.

        These are the FLOPs of the model: the backward pass takes twice those of the forward pass,
        and what is computed again in it does not count (Chowdhery et al. 2022, appendix B).

        Args:
            batch: `[B, *]`, on the devices.
            num_rows: its first rows that count; the others are added for devices and microbatches.
        """
        return self._padded_flops(batch) * num_rows / len(jax.tree.leaves(batch)[0])

    def _padded_flops(self, batch: Batch) -> int:
        """Return the FLOPs of a training step on all rows of a batch."""
        leaves, structure = jax.tree.flatten(batch)
        shapes = structure, *(leaf.shape for leaf in leaves)
        if shapes not in self._flops:
            traced = self.evaluate_step.trace(self.abstract_state.parameters, batch)
            self._flops[shapes] = 3 * matrix_flops(traced.jaxpr.jaxpr)
        return self._flops[shapes]

    def losses(self, parameters: nnx.State, batches: Iterable[Batch]) -> dict[str, float]:
        """Return loss and accuracy over all batches together, without dropout.

        One batch is computed at a time: the threads of a CPU with two cores can all wait for sums
        over devices if several programs with such sums run at once.
        """
        sums = []
        for rows in rows_of_each(batches):
            stop_point()
            placed = place_rows(rows, self.mesh)
            sums.append(jax.device_get(self.evaluate_step(parameters, placed)))
        total = jax.tree.map(lambda *parts: sum(parts), *sums)
        return {name: float(value) for name, value in per_token(total).items()}

    def apply(self, method: Callable[..., Array]) -> Callable[..., Array]:
        """Compile `method(model, ...)` as a function of parameters and arrays.

        It runs on one device, unless the parameters are sharded. Each call is a step for the
        timeout of steps.
        """
        program = compiled(
            lambda parameters, *arrays: method(nnx.merge(self.definition, parameters), *arrays)
        )

        def run(parameters: nnx.State, *arrays: Array) -> Array:
            return gather_to_host(program(one_copy(parameters), *arrays))

        return run


def _with_shardings(shapes: TrainState, mesh: Mesh) -> TrainState:
    return jax.tree.map(
        lambda leaf, own: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=own),
        shapes,
        shardings(shapes, mesh),
    )


def _with_parameters(state: TrainState, parameters: Mapping[Any, Any]) -> TrainState:
    """Replace some parameters of a state, and of its average."""

    def replaced(tree: nnx.State) -> nnx.State:
        flat = dict(nnx.to_flat_state(tree))
        for path, array in parameters.items():
            old = flat[path][...]
            # A copy, since the training step reuses the memory of its state.
            array = jax.device_put(array, old.sharding, may_alias=False)
            flat[path] = flat[path].replace(array.astype(old.dtype))
        return nnx.from_flat_state(flat)

    if not parameters:
        return state
    average = None if state.average is None else replaced(state.average)
    return state._replace(parameters=replaced(state.parameters), average=average)

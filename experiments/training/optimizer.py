"""Adam, its learning rate over time, weight decay and gradient clipping."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from experiments.config.train import TrainPart


def schedule(name: str, *, peak: float, warmup_steps: int, total_steps: int) -> optax.Schedule:
    """Return the learning rate of each step: a linear rise from 0, then a fall of the named form.

    An extended run continues with the schedule of its new length, so a rate that has fallen to 0
    rises again.

    Args:
        name: "constant"; "linear" or "cosine", which reach 0 at the end; "inverse_sqrt", which
            falls with 1/√step (Vaswani et al. 2017, equation 3); "plateau", constant here and
            lowered by the training loop.
        peak: the learning rate at the end of the warm-up.
        warmup_steps: steps of the rise.
        total_steps: steps of the training.
    """
    falling_steps = total_steps - warmup_steps
    falls = {
        "constant": optax.constant_schedule(peak),
        "plateau": optax.constant_schedule(peak),
        "linear": optax.linear_schedule(peak, 0.0, falling_steps),
        "cosine": optax.cosine_decay_schedule(peak, falling_steps),
        "inverse_sqrt": lambda step: (  # which is asked during the warm-up too
            peak * (max(warmup_steps, 1) / (max(warmup_steps, 1) + jnp.maximum(step, 0))) ** 0.5
        ),
    }
    rise = optax.linear_schedule(0.0, peak, warmup_steps)
    return optax.join_schedules([rise, falls[name]], [warmup_steps])


def optimizer(config: TrainPart, parameters: nnx.State) -> optax.GradientTransformation:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019) on clipped gradients.

    Without weight decay it is Adam (Kingma and Ba 2015). Biases, norms and embeddings do not decay
    unless `config.decay_all`.

    Args:
        config: `config.train`.
        parameters: of the model, or their shapes.
    """
    learning_rate = schedule(
        config.schedule,
        peak=config.learning_rate,
        warmup_steps=config.warmup_steps,
        total_steps=config.steps,
    )
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            learning_rate,
            b1=config.beta1,
            b2=config.beta2,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            mask=None if config.decay_all else decaying(parameters),
        ),
    )


def decaying(parameters: nnx.State) -> nnx.State:
    """Return for each parameter whether it decays: False for biases, norms and embeddings.

    Args:
        parameters: with logical axis names as metadata "axes", which exclude that of stacked
            layers.
    """

    def decays(path: tuple[Any, ...], parameter: nnx.Variable) -> bool:
        axes = parameter.get_metadata().get("axes", (None,) * parameter.ndim)
        name = jax.tree_util.keystr(path[-1:], simple=True)
        return (
            name not in ("bias", "table")
            and len(axes) > 1
            and axes[0] not in ("vocab", "token_types")
        )

    return jax.tree_util.tree_map_with_path(
        decays, parameters, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )

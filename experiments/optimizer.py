"""Adam, its learning rate over time, weight decay and gradient clipping."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from experiments.config.parts import TrainPart


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
    unless `config.decay_all`; the vector of a class token does. With `config.skip_nonfinite`, a
    gradient that is not finite changes nothing. Parameters may be shapes.
    """
    adam = optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            schedule(config),
            b1=config.beta1,
            b2=config.beta2,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            mask=None if config.decay_all else decaying(parameters),
        ),
    )
    return optax.apply_if_finite(adam, config.skip_nonfinite) if config.skip_nonfinite else adam


def decaying(parameters: nnx.State) -> nnx.State:
    """Return for each parameter whether it decays: False for biases, norms and tables of vectors.

    The metadata "axes" names the axes of a parameter without that of stacked layers.
    """

    def decays(path: tuple[Any, ...], parameter: nnx.Variable) -> bool:
        axes = parameter.get_metadata().get("axes", (None,) * parameter.ndim)
        name = jax.tree_util.keystr(path[-1:], simple=True)
        kept = "bias", "table", "vocab", "token_types"
        return len(axes) > 1 and name not in kept and axes[0] not in kept

    return jax.tree_util.tree_map_with_path(
        decays, parameters, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )

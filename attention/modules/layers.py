"""Linear layers, norms, the feed-forward layer, dropout, and tables of vectors."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.lax import DotDimensionNumbers
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from attention.modules.context import DEFAULT_CONTEXT, Context
from attention.modules.numbers import check_dtype, check_number, check_rate
from attention.primitives.choice import one_of
from attention.primitives.dropout import is_kept
from attention.primitives.numerics import score_dtype

LECUN_NORMAL = nnx.initializers.lecun_normal()

# name -> initializer of kernels. LeCun et al. 1998; Glorot and Bengio 2010; He et al. 2015; the
# standard deviation of GPT-2 and BERT.
INITIALIZERS: dict[str, Initializer] = {
    "lecun_normal": LECUN_NORMAL,
    "xavier_uniform": nnx.initializers.xavier_uniform(),
    "he_normal": nnx.initializers.he_normal(),
    "normal_0.02": nnx.initializers.normal(0.02),
}


def named(name: str, given: Any, title: str, registry: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any value
    """Return an entry of a registry called `title`, or what was given if it can be called.

    Raises a ValueError for an unknown name, with `name`, that of the argument.
    """
    if callable(given):
        return given
    one_of(name, given, tuple(registry), registry=title)
    return registry[given]


def dot_general(
    inputs: Array, kernel: Array, dimension_numbers: DotDimensionNumbers, **options: object
) -> Array:
    """Compute `jax.lax.dot_general` of the last axes of inputs as a product of two matrices.

    The gradient of a kernel sums over rows. If rows are several axes, such as batch and position,
    XLA on a CPU writes the other operand again in a strided loop: a training step of the toy
    translation takes 1.05 times as long. Merged axes would have to be gathered if the second were
    sharded too, so over an explicit mesh, and if a mesh has an axis "sequence", they are not
    merged. The axes of inputs and kernel are `[*rows, *contracted]` and `[*contracted, *features]`.
    """
    count = len(dimension_numbers[0][1])
    rows, contracted = inputs.shape[: inputs.ndim - count], inputs.shape[inputs.ndim - count :]
    shardings = [jax.typeof(each).sharding for each in (inputs, kernel)]
    is_sharded = options.get("out_sharding") or any(
        any(each.spec) or each.mesh.shape.get("sequence", 1) > 1 for each in shardings
    )
    if is_sharded or contracted != kernel.shape[:count]:  # of which `lax` makes an error
        return jax.lax.dot_general(inputs, kernel, dimension_numbers, **options)
    size, features = math.prod(contracted), kernel.shape[count:]
    inputs = inputs.reshape(math.prod(rows), size)
    kernel = kernel.reshape(size, math.prod(features))
    product = jax.lax.dot_general(inputs, kernel, (((1,), (0,)), ((), ())), **options)
    return product.reshape(*rows, *features)


def linear(
    inputs: Mapping[str, int], outputs: Mapping[str, int], **options: object
) -> nnx.LinearGeneral:
    """Make a linear layer over named axes.

    Args:
        inputs: sizes of the last axes of the inputs by logical name, for instance {"embed": 64}.
        outputs: the same of the outputs, for instance {"heads": 4, "head": 16}.
        options: `use_bias`, `kernel_init`, `dtype` (of the computation; that of inputs and
            parameters if None), `param_dtype` and `rngs`, as in `nnx.LinearGeneral`.

    Returns:
        A module whose parameters have metadata "axes", their logical axis names, and whose kernel
        has metadata "num_inputs", the number of its input axes.
    """
    check_dtype("dtype", options.get("dtype"))
    return nnx.LinearGeneral(
        tuple(inputs.values()),
        tuple(outputs.values()),
        axis=tuple(range(-len(inputs), 0)),
        dot_general=dot_general,
        kernel_metadata={"axes": (*inputs, *outputs), "num_inputs": len(inputs)},
        bias_metadata={"axes": tuple(outputs)},
        **options,
    )


def make_table(
    shape: tuple[int, int],
    axes: tuple[str | None, str | None],
    *,
    init: Initializer | None = None,
    param_dtype: DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
) -> nnx.Param:
    """Make a table `[rows, D]` with logical axis names, of variance 1/D if `init` is None."""
    init = nnx.initializers.normal(shape[-1] ** -0.5) if init is None else init
    return nnx.Param(init(rngs.params(), shape, param_dtype), axes=axes)


def take_rows(table: Array, numbers: Array) -> Array:
    """Return rows of a table `[rows, D]`; a number out of range gives NaN."""
    return table.at[numbers].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


class Norm(nnx.Module):
    """Layer norm (Ba et al. 2016) or root mean square norm (Zhang and Sennrich 2019).

    It computes in float32 at least, whatever the dtypes of inputs and parameters.
    """

    def __init__(
        self,
        width: int,
        *,
        is_centred: bool,
        epsilon: float = 1e-6,
        axis: str = "embed",
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        """Make a norm that multiplies by 1, and adds 0 if it is centred.

        Args:
            width: size of the last axis.
            is_centred: True for layer norm, False for root mean square norm.
            epsilon: added to the variance or the mean square.
            axis: logical name of the last axis.
            dtype: of the outputs; that of the inputs if None.
            param_dtype: of the parameters.
            rngs: not used; every norm in `NORMS` has this argument.

        Raises:
            ValueError: an epsilon below 0 or not finite.
        """
        del rngs
        check_number("epsilon", epsilon, at_least=0)
        check_dtype("dtype", dtype)
        self.scale = nnx.Param(jnp.ones(width, param_dtype), axes=(axis,))
        self.bias = nnx.Param(jnp.zeros(width, param_dtype), axes=(axis,)) if is_centred else None
        self.epsilon, self.dtype = epsilon, dtype

    def __call__(self, inputs: Array) -> Array:
        """Normalise `[..., D]`."""
        dtype = score_dtype(inputs)
        vectors, scale = inputs.astype(dtype), self.scale[...].astype(dtype)
        factor = scale.reshape((1,) * (inputs.ndim - 1) + scale.shape)
        if self.bias is None:
            variance = jnp.mean(vectors**2, axis=-1, keepdims=True)
            outputs = vectors * (jax.lax.rsqrt(variance + self.epsilon) * factor)
        else:
            # A constant near the mean, without which the difference below cancels far from 0.
            vectors -= jax.lax.stop_gradient(vectors.mean(axis=-1, keepdims=True))
            mean = vectors.mean(axis=-1, keepdims=True)
            variance = jnp.mean(vectors**2, axis=-1, keepdims=True) - mean**2
            inverse = jax.lax.rsqrt(jnp.maximum(variance, 0) + self.epsilon)
            outputs = (vectors - mean) * (inverse * factor)
            outputs += self.bias[...].astype(dtype).reshape(factor.shape)
        return outputs.astype(self.dtype or inputs.dtype)


layer_norm = partial(Norm, is_centred=True)
rms_norm = partial(Norm, is_centred=False)

# name -> f(width, *, epsilon, axis, dtype, param_dtype, rngs). Add your own.
NORMS: dict[str, Callable[..., Any]] = {"layer": layer_norm, "rms": rms_norm}

Activation = Callable[[Array], Array]

ACTIVATIONS: dict[str, Activation] = {
    "relu": jax.nn.relu,
    # The tanh form (Hendrycks and Gimpel 2016). Its derivative would read eight arrays of the
    # forward pass; recomputing them costs less.
    "gelu": jax.checkpoint(jax.nn.gelu),
    "gelu_exact": partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


def activation_of(given: str | Activation) -> Activation:
    """Return an activation by its name in `ACTIVATIONS`, or the function that was given."""
    return named("activation", given, "ACTIVATIONS", ACTIVATIONS)


class FeedForward(nnx.Module):
    """Project each position to F, apply an activation, and project back to D.

    Vaswani et al. 2017, section 3.3; with `gated`, the activation of one projection is
    multiplied with another (Shazeer 2020: SwiGLU with "silu", GEGLU with "gelu").
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        activation: str | Activation = "relu",
        gated: bool = False,
        **options: Any,  # noqa: ANN401 - of several types
    ) -> None:
        """Make the two matrices, or three if gated.

        Args:
            width: D.
            hidden: F.
            activation: a function, or a name in `ACTIVATIONS`, which is checked.
            gated: whether to multiply with a second projection to F.
            options: as in `linear`.
        """
        make = partial(linear, **options)
        activation_of(activation)  # raises for an unknown name
        self.activation = activation  # by name: most functions of jax cannot be copied or pickled
        self.up = make({"embed": width}, {"hidden": hidden})
        self.gate = make({"embed": width}, {"hidden": hidden}) if gated else None
        self.down = make({"hidden": hidden}, {"embed": width})

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Array:
        """Map `[..., D]` to `[..., D]`."""
        hidden, activation = self.up(inputs), activation_of(self.activation)
        hidden = activation(hidden) if self.gate is None else activation(self.gate(inputs)) * hidden
        return self.down(context.shard(hidden, "sequence", "hidden"))


def drop(inputs: Array, rate: float, rng: Array | None) -> Array:
    """Zero entries with probability `rate` and scale up the rest; the identity without a key.

    The entries of `[..., D]` are chosen by the hash of `attention.Dropout`: on a CPU, random bits
    of JAX would take a tenth of a training step.

    Raises:
        ValueError: a rate outside [0, 1); several keys: `jax.vmap` gives each example its own.
    """
    check_rate("rate", rate)
    if rng is None or not rate:
        return inputs
    words = jax.random.key_data(rng)
    if words.ndim > 1:
        raise ValueError(f"drop takes one key, got {words.shape[:-1]} of them: use jax.vmap")
    *rows, width = inputs.shape
    row = jnp.arange(math.prod(rows)).reshape(*rows, 1)
    kept = is_kept(words, rate, row, jnp.arange(width))
    return jnp.where(kept, inputs / (1 - rate), 0)


def split_rng(rng: Array | None, number: int) -> Sequence[Array | None]:
    """Return independent keys, or as many times None."""
    return [None] * number if rng is None else list(jax.random.split(rng, number))

"""Linear layers, norms, the feed-forward layer, dropout, and tables of vectors."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jax.lax import DotAlgorithmPreset, DotDimensionNumbers, Precision
from jax.nn.initializers import Initializer
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from attention.modules.context import DEFAULT_CONTEXT, Context
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


def soft_cap(array: Array, bound: float | None) -> Array:
    """Return c·tanh(x / c) for a bound c, the array itself for None (Gemma 2)."""
    return array if bound is None else bound * jnp.tanh(array / bound)


def named(name: str, given: Any, title: str, registry: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any value
    """Return an entry of a registry by its name, or what was given if it can be called.

    Args:
        name: of the argument.
        given: its value.
        title: name of the registry.
        registry: name -> value.

    Raises:
        ValueError: an unknown name.
    """
    if callable(given):
        return given
    one_of(name, given, tuple(registry), registry=title)
    return registry[given]


def dot_general(
    inputs: Array,
    kernel: Array,
    dimension_numbers: DotDimensionNumbers,
    precision: str | Precision | DotAlgorithmPreset | None = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: NamedSharding | PartitionSpec | None = None,
) -> Array:
    """Compute `jax.lax.dot_general`, with gradients that are faster on a CPU.

    The gradient of a kernel is a sum over rows. If rows are several axes, such as batch and
    position, XLA on a CPU transposes the other operand for it and recomputes in a strided loop what
    led to that operand (docs/STEPS.md). Here the gradient merges the axes of rows, and those of
    features. The product and the gradient of the inputs keep the axes of rows, of which the first
    may be sharded. Merged axes would have to be gathered if the second were sharded too.

    Args:
        inputs: `[*rows, *contracted]`.
        kernel: `[*contracted, *features]`. If axes are in another order, if there are batch axes,
            if an operand is sharded over an explicit mesh, or if the mesh has an axis "sequence",
            the gradients are those of `lax`.
        dimension_numbers: axes as in `lax`.
        precision: as in `lax`.
        preferred_element_type: as in `lax`.
        out_sharding: as in `lax`.

    Returns:
        `[*rows, *features]`.
    """
    multiply = partial(
        jax.lax.dot_general, precision=precision, preferred_element_type=preferred_element_type
    )
    plain = partial(multiply, dimension_numbers=dimension_numbers, out_sharding=out_sharding)
    (inputs_axes, kernel_axes), (batch_axes, _) = dimension_numbers
    rows, count = inputs.ndim - len(inputs_axes), len(kernel_axes)
    in_order = (*inputs_axes, *kernel_axes) == (*range(rows, inputs.ndim), *range(count))
    shardings = [jax.typeof(each).sharding for each in (inputs, kernel)]
    sharded = out_sharding or any(any(each.spec) for each in shardings)
    sharded = sharded or any(each.mesh.shape.get("sequence", 1) > 1 for each in shardings)
    if not in_order or batch_axes or sharded:
        return plain(inputs, kernel)

    def by_matrix(inputs: Array, kernel: Array, shape: tuple[int, ...]) -> Array:
        matrix = kernel.reshape(*kernel.shape[:count], math.prod(kernel.shape[count:]))
        last = range(inputs.ndim - count, inputs.ndim)
        return multiply(inputs, matrix, ((last, range(count)), ((), ()))).reshape(shape)

    @jax.custom_jvp
    def multiplied(inputs: Array, kernel: Array) -> Array:
        return plain(inputs, kernel)

    @partial(multiplied.defjvp, symbolic_zeros=True)
    def multiplied_jvp(
        primals: tuple[Array, Array], tangents: tuple[Array | SymbolicZero, Array | SymbolicZero]
    ) -> tuple[Array, Array]:
        (inputs, kernel), (d_inputs, d_kernel) = primals, tangents
        outputs = multiplied(inputs, kernel)
        terms = []
        if not isinstance(d_inputs, SymbolicZero):
            terms.append(by_matrix(d_inputs, kernel, outputs.shape))
        if not isinstance(d_kernel, SymbolicZero):
            rows_as_one_axis = inputs.reshape(math.prod(inputs.shape[:rows]), *inputs.shape[rows:])
            terms.append(by_matrix(rows_as_one_axis, d_kernel, outputs.shape))
        return outputs, sum(terms[1:], terms[0])

    return multiplied(inputs, kernel)


def linear(
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
    *,
    use_bias: bool = True,
    kernel_init: Initializer = LECUN_NORMAL,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
) -> nnx.LinearGeneral:
    """Make a linear layer over named axes.

    Args:
        inputs: sizes of the last axes of the inputs by logical name, for instance {"embed": 64}.
        outputs: the same of the outputs, for instance {"heads": 4, "head": 16}.
        use_bias: whether to add a bias of the shape of the outputs.
        kernel_init: initializer of the kernel, of shape inputs + outputs.
        dtype: of the computation; that of inputs and parameters if None.
        param_dtype: of the parameters.
        rngs: source of the initial parameters.

    Returns:
        A module whose parameters have metadata "axes", their logical axis names, and whose kernel
        has metadata "num_inputs", the number of its input axes.
    """
    return nnx.LinearGeneral(
        tuple(inputs.values()),
        tuple(outputs.values()),
        axis=tuple(range(-len(inputs), 0)),
        use_bias=use_bias,
        kernel_init=kernel_init,
        dtype=dtype,
        param_dtype=param_dtype,
        dot_general=dot_general,
        rngs=rngs,
        kernel_metadata={"axes": (*inputs, *outputs), "num_inputs": len(inputs)},
        bias_metadata={"axes": tuple(outputs)},
    )


def table(
    shape: tuple[int, int],
    axes: tuple[str | None, str | None],
    *,
    init: Initializer | None = None,
    dtype: DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
) -> nnx.Param:
    """Make a table `[rows, D]` with logical axis names, of variance 1/D if `init` is None."""
    init = nnx.initializers.normal(shape[-1] ** -0.5) if init is None else init
    return nnx.Param(init(rngs.params(), shape, dtype), axes=axes)


def rows(table: Array, numbers: Array) -> Array:
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
        """
        del rngs
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
            variance = jnp.maximum(variance, 0)
            outputs = (vectors - mean) * (jax.lax.rsqrt(variance + self.epsilon) * factor)
            outputs += self.bias[...].astype(dtype).reshape(factor.shape)
        return outputs.astype(self.dtype or inputs.dtype)


layer_norm = partial(Norm, is_centred=True)
rms_norm = partial(Norm, is_centred=False)

# name -> f(width, *, epsilon, axis, dtype, param_dtype, rngs). Add your own.
NORMS: dict[str, Callable[..., Any]] = {"layer": layer_norm, "rms": rms_norm}


def norm_of(given: str | Callable[..., Any], name: str = "norm") -> Callable[..., Any]:
    """Return a norm by its name in `NORMS`, or the function that was given as this argument.

    Raises:
        ValueError: an unknown name.
    """
    return named(name, given, "NORMS", NORMS)


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
    """Return an activation by its name in `ACTIVATIONS`, or the function that was given.

    Raises:
        ValueError: an unknown name.
    """
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
            activation: a function, or a name in `ACTIVATIONS`.
            gated: whether to multiply with a second projection to F.
            options: of `linear`: `use_bias`, `kernel_init`, `dtype`, `param_dtype` and `rngs`.

        Raises:
            ValueError: an unknown activation.
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

    The entries are chosen by the hash of `attention.Dropout`: on a CPU, random bits of JAX would
    take a tenth of a training step.

    Args:
        inputs: `[..., D]`.
        rate: in [0, 1).
        rng: a JAX random key, or None.

    Raises:
        ValueError: several keys; `jax.vmap` gives each example its own.
    """
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

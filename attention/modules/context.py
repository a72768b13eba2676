"""Arguments and results that every layer of every stack has in common."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Real
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from attention.primitives.attend import attend
from attention.primitives.choice import did_you_mean
from attention.primitives.masks import Mask
from attention.primitives.pytree_dataclass import pytree_dataclass, static
from attention.primitives.scores import Score

AxisNames = tuple[str | None, ...]
Layer = Callable[..., Any]


@pytree_dataclass
class Context:
    """Arguments that a stack passes to every sublayer beside its inputs `[..., T, D]`.

    Attributes:
        mask: of self-attention, as in `attention.attend`; a decoder has added the causal mask.
            Beside a cache, a bool array has a row and a column for each position of the cache.
        score: score functions of the self-attention of every layer, such as ALiBi.
        positions: int32 `[..., T]`, of the inputs in masks, scores and rotary encodings; counted
            from 0 if None. A decoder with a cache counts on from the tokens in the cache.
        lengths: int `[...]`, number of valid tokens per row, followed by padding; T if None.
            Self-attention does not attend to the padding, and a cache does not store it.
        encoder_output: `[..., S, D]`, attended to by cross-attention.
        encoder_mask: of cross-attention, as in `attention.attend`; a bool array has a row for each
            of the T inputs, also beside a cache.
        encoder_positions: int32 `[..., S]`, of the encoder output; counted from 0 if None.
        rng: random key of dropout; None turns dropout off.
        cache: state of this layer between decoding steps; None in training.
        returning: names of results of attention to return, as in `attention.attend`, and
            "hidden_states".
        constrain: `(array, names of its axes) -> array`, to request a sharding.
        attend: the attention function of all layers, with the arguments of `attention.attend`, such
            as a `ShardedAttention`.
        nothing: an empty array. `nnx.tabulate` cannot print an argument without an array.
    """

    mask: Mask | Array | None = None
    score: tuple[Score, ...] = ()
    positions: Array | None = None
    lengths: Array | None = None
    encoder_output: Any = None
    encoder_mask: Mask | Array | None = None
    encoder_positions: Array | None = None
    rng: Array | None = None
    cache: Any = None
    nothing: Array | None = None
    returning: tuple[str, ...] = static(default=())
    constrain: Callable[[Array, AxisNames], Array] | None = static(default=None)
    attend: Callable[..., Any] = static(default=attend)

    def __post_init__(self) -> None:
        """Convert lists and NumPy arrays, one score function, and any collection of names."""
        for name in ("mask", "positions", "lengths", "encoder_mask", "encoder_positions"):
            value = getattr(self, name)
            is_array = hasattr(value, "__array__") and not isinstance(value, Array)
            if is_array or isinstance(value, list | tuple):
                object.__setattr__(self, name, jnp.asarray(value))
        if isinstance(self.score, Score):
            object.__setattr__(self, "score", (self.score,))
        if isinstance(self.returning, str):
            raise ValueError(f"returning needs a collection of names, got {self.returning!r}")
        object.__setattr__(self, "returning", tuple(self.returning))

    def valid(self, num_tokens: int) -> Array | None:
        """Return which of T tokens are no padding by `lengths`: bool `[..., T]`; None if all."""
        if self.lengths is None:
            return None
        return jnp.subtract.outer(self.lengths, jnp.arange(num_tokens)) > 0

    def shard(self, array: Array, *names: str) -> Array:
        """Apply `constrain` to an array whose last axes have these names; the first is "batch"."""
        batch = ("batch", *[None] * array.ndim)[: array.ndim - len(names)]
        return array if self.constrain is None else self.constrain(array, (*batch, *names))

    def check_source(self) -> None:
        """Raise a ValueError for an encoder output beside a cache, which contains one already."""
        if self.cache is not None and self.encoder_output is not None:
            raise ValueError("a cache contains its own encoder output: give none beside it")


DEFAULT_CONTEXT = Context()


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """Sizes of the caches that `new_cache(spec)` of a layer makes.

    Cross-attention precomputes keys and values of `encoder_output`; the last three fields are those
    of `Context`.

    Attributes:
        batch: the leading axes of the inputs.
        size: largest number of tokens per row; of a ring, of its window.
        dtype: of keys and values; that of the computation if None.
        ring: whether a full row continues in its first slot, as in `attention.Cache`.
    """

    batch: tuple[int, ...]
    size: int
    dtype: DTypeLike | None = None
    ring: bool = False
    encoder_output: Any = None
    encoder_positions: Array | None = None
    constrain: Callable[[Array, AxisNames], Array] | None = None


class Output(NamedTuple):
    """Result of a layer, a stack or a model.

    Attributes:
        features: `[..., T, D]`.
        attention: results named in `returning`: of attention `{name: array}`, of a block
            `{sublayer: {name: array}}`, of a stack a tuple with one entry per layer.
        hidden_states: `[..., T, D]` each: inputs of the first layer and outputs of every layer,
            if "hidden_states" is in `returning`.
        cache: the new cache, if one was given.
        losses: auxiliary losses by name, summed over the layers.
        logits: `[..., T, V]` of a vocabulary, `[B, V]` of one step, or `[..., C]` of classes.
        encoder: the output of the encoder of an encoder-decoder.
    """

    features: Array
    attention: Any = None
    hidden_states: tuple[Array, ...] = ()
    cache: Any = None
    losses: Mapping[str, Array] = {}
    logits: Any = None
    encoder: "Output | None" = None


def apply_layer(layer: Layer, inputs: Array, context: Context) -> Output:
    """Call a layer on `[..., T, D]`, with the context if it has this argument or any keywords.

    A layer returns features or an `Output`.

    Raises:
        TypeError: another result; a module without the argument that contains attention.
    """
    if _takes_context(layer):
        if context.nothing is None:
            context = replace(context, nothing=jnp.zeros(0, bool))
        result = layer(inputs, context=context)
    else:
        masked = context.mask is not None or context.lengths is not None
        for _, part in nnx.iter_modules(layer) if isinstance(layer, nnx.Module) else ():
            # Without the mask of the context it is not causal.
            if hasattr(part, "new_cache") or (masked and isinstance(part, nnx.MultiHeadAttention)):
                raise TypeError(
                    f"{type(layer).__name__} has no argument context for its "
                    f"{type(part).__name__}: add it, and pass it on"
                )
        result = layer(inputs)
    if not isinstance(result, Output) and not hasattr(result, "dtype"):
        raise TypeError(f"a layer returns features or an Output, got {type(result).__name__}")
    return result if isinstance(result, Output) else Output(result)


def _takes_context(layer: Layer) -> bool:
    # `nnx.Sequential` passes its keywords to the first of its layers alone.
    if isinstance(layer, nnx.Sequential):
        return False
    is_module = isinstance(layer, nnx.Module)
    return _method_has_context(type(layer).__call__) if is_module else _has_context(layer)


def _has_context(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(each.name == "context" or each.kind is each.VAR_KEYWORD for each in parameters)


_method_has_context = lru_cache(_has_context)  # reading a signature takes longer than a small layer


def new_cache(layer: Layer, spec: CacheSpec) -> Any:  # noqa: ANN401 - any pytree
    """Return `layer.new_cache(spec)`, or None for a layer without state between steps."""
    return layer.new_cache(spec) if hasattr(layer, "new_cache") else None


# Names of other libraries -> ours, of arguments of models and fields of configs.
OTHER_NAMES = {
    "attention_mask": "mask",
    "d_model": "width",
    "hidden_size": "width",
    "intermediate_size": "hidden",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "decoder_layers",
    "num_layers": "decoder_layers",
    "num_key_value_heads": "num_kv_heads",
    "rope_theta": "rotary",
}


def check_names(
    sentence: str, given: Iterable[str], known: Iterable[str], error: type[Exception] = TypeError
) -> None:
    """Raise an error for a name that is not known: the sentence, the name, and the nearest one."""
    for name in given:
        if name not in known:
            ours = OTHER_NAMES.get(name)
            nearest = did_you_mean(ours if ours in known else name, known)
            raise error(f"{sentence} {name!r}{nearest}")


def check_rng(
    model: nnx.Module, rng: Array | None, other: str = "pass rng=jax.random.key(...), or "
) -> None:
    """Raise a ValueError for a model in training mode with dropout that is called without a key.

    `train` and `eval` of nnx set `deterministic`. The sentence has `other` advice beside `eval`.
    """
    if getattr(model, "deterministic", True) or rng is not None:
        return
    for _, part in nnx.iter_modules(model):
        rate = getattr(part, "dropout", None)
        if isinstance(rate, Real) and rate > 0:
            raise ValueError(
                f"the model is in training mode, and its {type(part).__name__} has dropout={rate}: "
                f"{other}call model.eval() before"
            )


def and_mask(mask: Mask, other: Mask | Array | None) -> Mask:
    """AND a predicate on positions with any `mask` of `attention.attend`, or None."""
    return mask if other is None else mask & other


def add_losses(*each: Mapping[str, Array]) -> dict[str, Array]:
    """Sum auxiliary losses of the same name."""
    total: dict[str, Array] = {}
    for losses in each:
        for name, loss in losses.items():
            total[name] = total[name] + loss if name in total else loss
    return total


Module = TypeVar("Module", bound=nnx.Module)


def map_axes(function: Callable[[AxisNames], Any], model: nnx.Module) -> nnx.State:
    """Apply a function to the axis names of every parameter, for instance to get its sharding.

    Names are such as ("embed", "heads", "head"). The results are in place of the arrays in the
    state `nnx.state(model, nnx.Param)`, which is returned.
    """
    return jax.tree.map(
        lambda parameter: parameter.replace(function(axis_names(parameter))),
        nnx.state(model, nnx.Param),
        is_leaf=lambda leaf: isinstance(leaf, nnx.Variable),
    )


def axis_names(parameter: nnx.Variable) -> AxisNames:
    """Return the name of each axis of a parameter, or of its shape.

    Its metadata "axes" are the names; the leading axis of stacked layers is "layers", and a
    parameter without names has None for every axis.
    """
    own = parameter.get_metadata().get("axes", (None,) * parameter.ndim)
    return ("layers",) * (parameter.ndim - len(own)) + tuple(own)


def name_axis(module: Module, name: str) -> Module:
    """Name the leading axis of every parameter of a module that was made by `jax.vmap`.

    `name_axis(jax.vmap(lambda key: FeedForward(8, 32, rngs=nnx.Rngs(key)))(keys), "experts")` gives
    a kernel the names ("experts", "embed", "hidden"). The module itself is changed.
    """
    for _, parameter in nnx.to_flat_state(nnx.state(module, nnx.Param)):
        own = parameter.get_metadata().get("axes", (None,) * (parameter.ndim - 1))
        num_named = parameter.get_metadata().get("num_named", 0) + 1  # not inputs of a kernel
        parameter.set_metadata(axes=(name, *own), num_named=num_named)
    return module

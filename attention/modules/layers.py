"""A stack of layers of any kind, scanned where they repeat."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.axes import width_error, widths_of
from attention.modules.context import (
    DEFAULT_CONTEXT,
    CacheSpec,
    Context,
    Layer,
    Output,
    add_losses,
    apply_layer,
    new_cache,
    type_of,
)

Model = TypeVar("Model", bound=nnx.Module)

_ONE = ((1, 1),)  # the groups of one layer
SHALLOW = 4  # layers; so few, without remat, are unrolled: they compile as fast as a scan


class Layers(nnx.Module):
    """n layers one after another.

    Layers repeat with period p if layers i and i + p have the same structure: static attributes,
    shapes and dtypes. The parameters of layers that repeat are stacked on a leading axis and the
    layers are scanned, so that the time to compile does not grow with n. `groups` contains a pair
    (period, repeats) for each part of the stack, such as (1, 1), (1, 23) if only the first of 24
    layers differs. `blocks` contains the p layers of each group, stacked if they repeat.

    With a cache the layers are always unrolled, because each writes to a separate buffer. Call
    `unstack_layers` before a decoding loop.
    """

    def __init__(
        self,
        make_layer: Callable[[Any, nnx.Rngs], Layer],
        n: int | Sequence[Any],
        *,
        rngs: nnx.Rngs,
        scan: bool = True,
        remat: bool = True,
    ) -> None:
        """Make the layers.

        Args:
            make_layer: from the index of a layer and a source of parameters to a layer, a module
                that `context.apply_layer` can call.
            n: number of layers; or a list with what `make_layer` takes in place of each index, such
                as a config. If any items repeat, equal items decide which layers repeat, and
                `make_layer` is called for one period of them only.
            rngs: source of the initial parameters.
            scan: whether to stack and scan layers that repeat.
            remat: whether the backward pass recomputes the inside of each layer.

        Raises:
            ValueError: n below 0, or a layer with a random stream or batch statistics.
        """
        if not isinstance(n, Sequence) and n < 0:
            raise ValueError(f"n must be at least 0, got {n}")
        items = n if isinstance(n, Sequence) else range(n)
        n = len(items)
        keys = jax.random.split(rngs.params(), n) if n else ()

        def make(item: object, key: Array) -> Layer:
            return make_layer(item, nnx.Rngs(key))

        def make_one(index: int) -> Layer:
            one = partial(make, items[index])
            # In a separate trace: flax reads every variable's sharding, which takes the longer
            # the more was traced before.
            return (jax.jit(one) if isinstance(keys, jax.core.Tracer) else one)(keys[index])

        def make_block(indices: range) -> Layer:
            if layers:
                return _stack([layers[index] for index in indices])
            if len(indices) == 1:
                return make_one(indices.start)
            of_block = keys[indices.start : indices.stop : indices.step]
            return jax.vmap(partial(make, items[indices.start]))(of_block)

        self.n, self.remat = n, remat
        self.groups, layers = _groups(items) if scan else n * _ONE, []
        if len(self.groups) == n:  # no items repeat
            layers = [make_one(index) for index in range(n)]
            self.groups = _groups([_kind(layer) for layer in layers]) if scan else self.groups
        self.blocks = nnx.List([make_block(indices) for indices in self.indices()])
        _check_stateless(self)

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., T, D]` to `[..., T, D]`.

        Raises:
            ValueError: layers whose widths do not fit, by index and both widths; a cache of another
                number of layers; errors of a layer, with its index.
        """
        caches = context.cache
        if caches is not None and (not isinstance(caches, tuple) or len(caches) != self.n):
            got = len(caches) if isinstance(caches, tuple) else type_of(caches)
            raise ValueError(f"{self.n} layers need a tuple of as many caches, got {got}")
        rngs = [None] * self.n if context.rng is None else jax.random.split(context.rng, self.n)
        call = self._remat(prevent_cse=True) if caches is None else apply_layer
        features, results = inputs, []
        groups = [([layer], 1) for layer in self.unstacked()] if caches else self._grouped()
        for layers, repeats in groups:
            index = len(results)
            if repeats > 1:
                results += self._scan(index, layers, repeats, features, rngs, context)
            else:
                part = replace(context, rng=rngs[index], cache=caches and caches[index])
                results.append(_call(call, index, layers[0], features, part))
            features = results[-1].features
        return _combine(inputs, results, context)

    def indices(self) -> list[range]:
        """Return the indices of the layers in each entry of `blocks`."""
        found, start = [], 0
        for period, repeats in self.groups:
            end = start + period * repeats
            found += [range(at, end, period) for at in range(start, start + period)]
            start = end
        return found

    def unstacked(self) -> list[Layer]:
        """Return the n layers, each with its own parameters."""
        groups = self._grouped()
        return [layer for layers, repeats in groups for layer in _unstack(layers, repeats)]

    def new_cache(self, spec: CacheSpec) -> tuple[Any, ...]:
        """Return the cache of each layer, None for one without state between steps."""
        return tuple(new_cache(layer, spec) for layer in self.unstacked())

    def _remat(self, *, prevent_cse: bool) -> Callable[[Layer, Array, Context], Output]:
        return jax.checkpoint(apply_layer, prevent_cse=prevent_cse) if self.remat else apply_layer

    def _grouped(self) -> list[tuple[list[Layer], int]]:
        """Return the layers in `blocks` and the number of repeats of each group."""
        start, grouped = 0, []
        for period, repeats in self.groups:
            grouped.append((list(self.blocks[start : start + period]), repeats))
            start += period
        return grouped

    def _scan(
        self,
        first: int,
        layers: list[Layer],
        repeats: int,
        inputs: Array,
        rngs: Array | list[None],
        context: Context,
    ) -> list[Output]:
        """Return the outputs of the layers of a group, whose first has this index."""
        has_rng = context.rng is not None
        if has_rng:
            rngs = rngs[first : first + repeats * len(layers)]
            rngs = rngs.reshape(repeats, len(layers), *rngs.shape[1:])  # also of raw keys
        call = self._remat(prevent_cse=False)  # inside a scan, CSE cannot undo rematerialisation
        keeps_features = "hidden_states" in context.returning

        def repeat(
            start: Array, each: tuple[list[Layer], Array | None]
        ) -> tuple[Array, list[Output]]:
            features, outputs = start, []
            for index, layer in enumerate(each[0]):
                part = replace(context, rng=each[1][index] if has_rng else None)
                output = _call(call, first + index, layer, features, part)
                features = output.features
                kept = features if keeps_features else None
                outputs.append(output._replace(features=kept, cache=None))
            if (start.shape, start.dtype) != (features.shape, features.dtype):
                raise ValueError(
                    f"layer {first + len(layers) - 1} returns {features.dtype} {features.shape}, "
                    f"and the next one, like layer {first}, takes {start.dtype} {start.shape}"
                )
            return features, outputs

        # A scan copies what it keeps for the derivative into arrays of all layers and back.
        unroll = not self.remat and self.n <= SHALLOW
        stacked = layers, rngs if has_rng else None
        features, outputs = jax.lax.scan(repeat, inputs, stacked, length=repeats, unroll=unroll)
        results = _unstack(outputs, repeats)
        return [*results[:-1], results[-1]._replace(features=features)]


def _call(
    call: Callable[[Layer, Array, Context], Output],
    index: int,
    layer: Layer,
    inputs: Array,
    context: Context,
) -> Output:
    """Call a layer and name it in its errors."""
    try:
        return call(layer, inputs, context)
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise
        if widths_of(layer) - {inputs.shape[-1]}:
            raise ValueError(width_error(f"layer {index}", layer, inputs)) from error
        raise type(error)(f"layer {index}: {error}") from error


def _combine(inputs: Array, results: list[Output], context: Context) -> Output:
    """Combine the outputs of layers into that of the stack."""
    features = [inputs, *(output.features for output in results)]
    return Output(
        features[-1],
        attention=tuple(output.attention for output in results),
        hidden_states=tuple(features) if "hidden_states" in context.returning else (),
        cache=None if context.cache is None else tuple(output.cache for output in results),
        losses=add_losses(*(output.losses for output in results)),
    )


def _check_stateless(layers: Layers) -> None:
    """Raise a ValueError for variables that a call would have to update."""
    state = nnx.state(layers.blocks, (nnx.RngState, nnx.BatchStat))
    for (block, *_), variable in nnx.to_flat_state(state):
        hint = ": use drop(inputs, rate, context.rng) of attention.modules for dropout"
        raise ValueError(
            f"layer {layers.indices()[block].start} contains {type(variable).__name__}, a variable "
            f"that Layers never updates{hint if isinstance(variable, nnx.RngState) else ''}"
        )


def _groups(items: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Split items into groups (period, repeats), each the longest one that repeats, or one item."""
    kinds, groups = [items.index(item) for item in items], []
    while kinds:
        periods = range(1, len(kinds) // 2 + 1)
        repeating = [(period, _repeats(kinds, period)) for period in periods]
        groups.append(max([*_ONE, *repeating], key=lambda group: math.prod(group) * (group[1] > 1)))
        kinds = kinds[math.prod(groups[-1]) :]
    return tuple(groups)


def _repeats(kinds: list[int], period: int) -> int:
    """Return how often the first kinds of this number follow one another."""
    repeats = 1
    while kinds[repeats * period : (repeats + 1) * period] == kinds[:period]:
        repeats += 1
    return repeats


def _kind(layer: Layer) -> tuple[list[jax.ShapeDtypeStruct], Any]:
    """Return what two layers that are stacked have in common."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), layer)
    return jax.tree.flatten(shapes)


def _stack(layers: list[Layer]) -> Layer:
    """Stack the arrays of layers, or return the only layer."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers) if layers[1:] else layers[0]


def _unstack(stacked: list[Any], repeats: int) -> list[Any]:
    """Return every layer or output, in order."""
    if repeats == 1:
        return stacked
    each = itertools.product(range(repeats), stacked)
    return [jax.tree.map(lambda leaf, at=at: leaf[at], tree) for at, tree in each]


def unstack_layers(model: Model) -> Model:
    """Return the model with separate parameters for each layer.

    In a decoding loop, a slice of stacked parameters would be copied for every token. The time to
    compile then grows with the number of layers, so train with the model as it was made.

    Args:
        model: contains `Layers`; it is not changed.
    """
    model = nnx.merge(*nnx.split(model))

    def stacked() -> list[tuple[int, Layers]]:
        parts = nnx.iter_modules(model)
        layers = [(len(at), part) for at, part in parts if isinstance(part, Layers)]
        return [(depth, part) for depth, part in layers if len(part.blocks) < part.n]

    while found := stacked():  # outer layers first: they stack the parameters of inner ones
        _, part = min(found, key=lambda each: each[0])
        part.blocks = nnx.List(part.unstacked())
        part.groups = part.n * _ONE
    return model

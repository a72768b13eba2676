"""A stack of layers of any kind, scanned where they repeat."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.context import (
    DEFAULT_CONTEXT,
    CacheSpec,
    Context,
    Layer,
    Output,
    add_losses,
    apply_layer,
    new_cache,
)

Model = TypeVar("Model", bound=nnx.Module)

SHALLOW = 4  # layers; so few, without remat, are unrolled: they compile as fast as a scan


class Layers(nnx.Module):
    """n layers one after another.

    Layers repeat with period p if layers i and i + p have the same structure: static attributes,
    shapes and dtypes. The parameters of layers that repeat are stacked on a leading axis and the
    layers are scanned, so that the time to compile does not grow with n. Then `blocks` contains p
    stacked layers, followed by the n % p layers that are left. Otherwise it contains n layers.

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
                as a config. If items repeat, it is called for one period of them only.
            rngs: source of the initial parameters.
            scan: whether to stack and scan layers that repeat.
            remat: whether the backward pass recomputes the inside of each layer.
        """
        items = n if isinstance(n, Sequence) else range(n)
        n = len(items)
        keys = jax.random.split(rngs.params(), n) if n else ()

        def make(item: object, key: Array) -> Layer:
            return make_layer(item, nnx.Rngs(key))

        def make_each(start: int) -> list[Layer]:
            # In a separate trace: flax reads every variable's sharding, which takes the longer
            # the more was traced before.
            is_traced = n and isinstance(keys, jax.core.Tracer)
            made = [partial(make, item) for item in items[start:]]
            made = map(jax.jit, made) if is_traced else made
            return [one(key) for one, key in zip(made, keys[start:], strict=True)]

        period, layers = _period(items) if scan else n, None
        if 2 * period > n:
            layers = make_each(0)
            period = _period([_kind(layer) for layer in layers]) if scan else n
        self.n, self.remat = n, remat
        self.repeats = n // period if period else 0
        self.period = period if self.repeats > 1 else 0  # number of stacked layers in `blocks`
        end = self.period * self.repeats
        if layers is None:
            each = range(period)
            stacked = [jax.vmap(partial(make, items[j]))(keys[j:end:period]) for j in each]
            self.blocks = nnx.List(stacked + make_each(end))
        else:
            stacked = [_stack(layers[j:end:period]) for j in range(self.period)]
            self.blocks = nnx.List(stacked + layers[end:])

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., T, D]` to `[..., T, D]`.

        Raises:
            ValueError: layers whose widths do not fit, by index and both widths; a cache of another
                number of layers; errors of a layer, with its index.
        """
        caches = context.cache
        if caches is not None and (not isinstance(caches, tuple) or len(caches) != self.n):
            got = len(caches) if isinstance(caches, tuple) else f"a {type(caches).__name__}"
            raise ValueError(f"{self.n} layers need a tuple of as many caches, got {got}")
        rngs = [None] * self.n if context.rng is None else jax.random.split(context.rng, self.n)
        results: list[Output] = []
        if caches is None and self.period:
            results = self._scan(inputs, rngs, context)
        rest = list(self.blocks[self.period :]) if results else self.unstacked()
        call = self._remat(prevent_cse=True) if caches is None else apply_layer
        for layer in rest:
            index = len(results)
            cache = None if caches is None else caches[index]
            features = results[-1].features if results else inputs
            part = replace(context, rng=rngs[index], cache=cache)
            results.append(_call(call, index, layer, features, part))
        return _combine(inputs, results, context)

    def unstacked(self) -> list[Layer]:
        """Return the n layers, each with its own parameters."""
        stacked, rest = self.blocks[: self.period], self.blocks[self.period :]
        repeats = range(self.repeats if self.period else 0)
        return [
            jax.tree.map(lambda leaf, at=at: leaf[at], layer) for at in repeats for layer in stacked
        ] + list(rest)

    def new_cache(self, spec: CacheSpec) -> tuple[Any, ...]:
        """Return the cache of each layer, None for one without state between steps."""
        return tuple(new_cache(layer, spec) for layer in self.unstacked())

    def _remat(self, *, prevent_cse: bool) -> Callable[[Layer, Array, Context], Output]:
        return jax.checkpoint(apply_layer, prevent_cse=prevent_cse) if self.remat else apply_layer

    def _scan(self, inputs: Array, rngs: Array | list[None], context: Context) -> list[Output]:
        """Return the output of each stacked layer, in order."""
        has_rng = context.rng is not None
        if has_rng:
            rngs = rngs[: self.period * self.repeats].reshape(self.repeats, self.period)
        call = self._remat(prevent_cse=False)  # inside a scan, CSE cannot undo rematerialisation
        keeps_features = "hidden_states" in context.returning

        def repeat(
            start: Array, layers: tuple[list[Layer], Array | None]
        ) -> tuple[Array, list[Output]]:
            features, outputs = start, []
            for index, layer in enumerate(layers[0]):
                part = replace(context, rng=layers[1][index] if has_rng else None)
                output = _call(call, index, layer, features, part)
                features = output.features
                kept = features if keeps_features else None
                outputs.append(output._replace(features=kept, cache=None))
            if (start.shape, start.dtype) != (features.shape, features.dtype):
                raise ValueError(
                    f"layer {self.period - 1} returns {features.dtype} {features.shape}, and the "
                    f"next one, like layer 0, takes {start.dtype} {start.shape}"
                )
            return features, outputs

        # A scan copies what it keeps for the derivative into arrays of all layers and back.
        unroll = not self.remat and self.n <= SHALLOW
        stacked = list(self.blocks[: self.period]), rngs if has_rng else None
        features, outputs = jax.lax.scan(
            repeat, inputs, stacked, length=self.repeats, unroll=unroll
        )
        results = [
            jax.tree.map(lambda leaf, at=at: leaf[at], output)
            for at in range(self.repeats)
            for output in outputs
        ]
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
        widths, width = _widths(layer), inputs.shape[-1]
        if widths and width not in widths:
            width_of_layer = " and ".join(map(str, sorted(widths)))
            raise ValueError(
                f"layer {index} has width {width_of_layer}, and its inputs have width {width}"
            ) from error
        raise type(error)(f"layer {index}: {error}") from error


def _widths(layer: Layer) -> set[int]:
    """Return the sizes of all axes with the logical name "embed"."""
    variables = jax.tree.leaves(layer, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    return {
        size
        for variable in variables
        if isinstance(variable, nnx.Variable)
        for name, size in zip(variable.get_metadata().get("axes", ()), variable.shape, strict=False)
        if name == "embed"
    }


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


def _period(items: Sequence[Any]) -> int:
    """Return the smallest period of the items, n if they do not repeat."""
    n = len(items)
    return next((p for p in range(1, n) if items[p:] == items[:-p]), n)


def _kind(layer: Layer) -> tuple[list[jax.ShapeDtypeStruct], Any]:
    """Return what two layers that are stacked have in common."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), layer)
    return jax.tree.flatten(shapes)


def _stack(layers: list[Layer]) -> Layer:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)


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
        return [(len(at), part) for at, part in parts if isinstance(part, Layers) and part.period]

    while found := stacked():  # outer layers first: they stack the parameters of inner ones
        _, part = min(found, key=lambda each: each[0])
        part.blocks = nnx.List(part.unstacked())
        part.period = part.repeats = 0
    return model

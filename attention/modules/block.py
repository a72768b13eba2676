"""Residual connections around sublayers, and blocks of them."""

from dataclasses import replace
from typing import Any

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
from attention.modules.dropout import drop, split_rng
from attention.primitives.choice import one_of


class Residual(nnx.Module):
    """A sublayer with a residual connection, a norm and dropout on the output of the sublayer.

    "pre": x + sublayer(norm(x)); "post": norm(x + sublayer(x)) (Vaswani et al. 2017). With an
    output norm: x + output_norm(sublayer(norm(x))) (Gemma 2).
    """

    def __init__(
        self,
        norm: nnx.Module | None,
        sublayer: Layer,
        *,
        placement: str = "pre",
        output_norm: nnx.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        """Connect a sublayer.

        Args:
            norm: maps `[..., D]` to `[..., D]`; None for no norm.
            sublayer: as in `context.apply_layer`.
            placement: of the norm, "pre" or "post".
            output_norm: of the output of the sublayer, before the sum.
            dropout: rate on the output of the sublayer.

        Raises:
            ValueError: an unknown placement.
        """
        one_of("placement", placement, ("pre", "post"))
        self.norm = norm
        self.sublayer = sublayer
        self.output_norm = output_norm
        self.placement = placement
        self.dropout = dropout

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., T, D]` to `[..., T, D]`.

        Raises:
            ValueError: a sublayer that does not keep the shape.
        """
        sublayer_rng, dropout_rng = split_rng(context.rng, 2)
        context = replace(context, rng=sublayer_rng)
        is_pre = self.placement == "pre"
        output = apply_layer(self.sublayer, self._normalize(inputs) if is_pre else inputs, context)
        added = output.features
        if self.output_norm is not None:
            added = self.output_norm(added)
        if added.shape != inputs.shape:
            raise ValueError(
                f"a residual connection adds inputs {inputs.shape} and the output of its sublayer, "
                f"got {added.shape}"
            )
        features = inputs + drop(added, self.dropout, dropout_rng).astype(inputs.dtype)
        features = features if is_pre else self._normalize(features)
        return output._replace(features=context.shard(features, "sequence", "embed"))

    def new_cache(self, spec: CacheSpec) -> Any:  # noqa: ANN401 - any pytree
        """Return the cache of the sublayer."""
        return new_cache(self.sublayer, spec)

    def _normalize(self, inputs: Array) -> Array:
        return inputs if self.norm is None else self.norm(inputs)


class Block(nnx.Module):
    """Sublayers one after another, by name.

    The names are those of the attributes, of `Output.attention` and of the cache:

        Block(self_attention=Residual(norm, attention), feed_forward=Residual(norm, feed_forward))
    """

    def __init__(self, **sublayers: Layer) -> None:
        """Make a block of sublayers, each as in `context.apply_layer`.

        Raises:
            ValueError: a name of an attribute of every block.
        """
        for name in sublayers:
            if name == "names" or hasattr(self, name):
                raise ValueError(f"a sublayer cannot have the name {name!r} of an attribute")
        self.names = tuple(sublayers)
        for name, sublayer in sublayers.items():
            setattr(self, name, sublayer)

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map `[..., T, D]` to `[..., T, D]`.

        Raises:
            ValueError: a cache of another block.
        """
        caches = dict.fromkeys(self.names) if context.cache is None else context.cache
        if not isinstance(caches, dict) or set(caches) != set(self.names):
            got = ", ".join(caches) if isinstance(caches, dict) else type(caches).__name__
            raise ValueError(f"a block of {', '.join(self.names)} cannot use a cache of {got}")
        rngs = split_rng(context.rng, len(self.names))
        features, results = inputs, {}
        for name, rng in zip(self.names, rngs, strict=True):
            part = replace(context, rng=rng, cache=caches[name])
            results[name] = apply_layer(getattr(self, name), features, part)
            features = results[name].features
        return Output(
            features,
            attention={name: each.attention for name, each in results.items() if each.attention},
            cache={name: each.cache for name, each in results.items()},
            losses=add_losses(*(each.losses for each in results.values())),
        )

    def new_cache(self, spec: CacheSpec) -> dict[str, Any]:
        """Return the caches of the sublayers, None for those without state between steps."""
        return {name: new_cache(getattr(self, name), spec) for name in self.names}

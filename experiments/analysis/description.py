"""Parameters of a model by part, and bytes and FLOPs of a token, computed from shapes alone."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from attention.modules import Attention, Layers

Path = tuple[str | int, ...]

# Parts in the order of a forward pass; parts without a name here come last.
ORDER = ("embedding", "source_embedding", "target_embedding", "encoder", "decoder")
ORDER += ("self_attention", "cross_attention", "feed_forward", "norms", "tokens", "positions")


class Part(NamedTuple):
    """Parameters of one kind.

    Attributes:
        name: as "decoder self attention".
        parameters: how many, in all layers.
        per_layer: mean over the layers; None for a part outside the layers.
    """

    name: str
    parameters: int
    per_layer: int | None


class TokenCost(NamedTuple):
    """Cost of one more token.

    Attributes:
        token: its kind, as "source token".
        cache_bytes: keys and values of all layers in the cache of decoding.
        matrix_flops: of a forward pass, in products with parameters.
        attention_flops: of a forward pass, in products of queries with keys, weights with values.
    """

    token: str
    cache_bytes: int
    matrix_flops: int
    attention_flops: int

    @property
    def forward_flops(self) -> int:
        """FLOPs of a forward pass."""
        return self.matrix_flops + self.attention_flops

    @property
    def training_flops(self) -> int:
        """FLOPs of a forward and a backward pass, which takes twice as many."""
        return 3 * self.forward_flops


class Description(NamedTuple):
    """Sizes and costs of a model.

    Attributes:
        parts: of its parameters.
        costs: of a token, or of a source and of a target token.
        context: how many tokens each token attends to, in self- and in cross-attention.
        dtype: of parameters and cache, by name.
    """

    parts: tuple[Part, ...]
    costs: tuple[TokenCost, ...]
    context: int
    dtype: str

    @classmethod
    def of(cls, model: nnx.Module, *, context: int) -> "Description":
        """Describe an encoder, a decoder or both.

        A product of a token with a matrix takes 2 FLOPs for each parameter, a multiplication and an
        addition (Kaplan et al. 2020, section 2.1). A token that attends to S keys, or to those of a
        window, takes 2 S N (H + Hv) more in each layer; the section counts half of that, the mean
        of a causal pass. Other operations are not counted.

        Args:
            model: with shapes for arrays, as from `jax.eval_shape`.
            context: S.
        """
        dtype = jax.tree.leaves(model)[0].dtype.name
        return cls(_parts(model), _costs(model, context), context, dtype)

    @property
    def parameters(self) -> int:
        """Number of all parameters."""
        return sum(part.parameters for part in self.parts)

    def __str__(self) -> str:
        """Return two tables."""
        parts = [["parameters", "in all", "per layer", "share"]]
        for name, parameters, per_layer in (*self.parts, Part("total", self.parameters, None)):
            layer = "" if per_layer is None else f"{per_layer:,}"
            parts.append([name, f"{parameters:,}", layer, f"{parameters / self.parameters:.1%}"])
        tokens = [f"per {one.token}" for one in self.costs]
        costs = [[f"at a context of {self.context:,} tokens", *tokens]]
        for name, field in (
            (f"cache, bytes in {self.dtype}", "cache_bytes"),
            ("FLOPs in matrices", "matrix_flops"),
            ("FLOPs in attention", "attention_flops"),
            ("FLOPs of a forward pass", "forward_flops"),
            ("FLOPs in training", "training_flops"),
        ):
            costs.append([name, *(f"{getattr(one, field):,}" for one in self.costs)])
        return "\n".join([*aligned(parts), "", *aligned(costs)])


def _parts(model: nnx.Module) -> tuple[Part, ...]:
    stacks = {path: part.n for path, part in nnx.iter_modules(model) if isinstance(part, Layers)}
    sizes, per_layer = Counter[Path](), Counter[Path]()
    for path, parameter in _parameters(model):
        layers = [n for stack, n in stacks.items() if path[: len(stack)] == stack]
        sizes[_part(path)] += parameter.size
        per_layer[_part(path)] += parameter.size / layers[0] if layers else 0
    return tuple(
        Part(" ".join(names).replace("_", " "), sizes[names], round(per_layer[names]) or None)
        for names in sorted(sizes, key=_order)
    )


def _part(path: Path) -> Path:
    """Return the part to which a parameter belongs.

    For instance ("decoder", "layers", "blocks", 0, "self_attention", "norm", "scale") belongs to
    ("decoder", "norms"), and the norms of queries and keys to their attention.
    """
    if not {"norm", "output_norm"}.isdisjoint(path):
        return path[0], "norms"
    inner = ("layers", "blocks", "sublayer", "kernel", "bias", "scale", "table")
    return tuple(name for name in path if isinstance(name, str) and name not in inner)[:2]


def _order(part: Path) -> list[int]:
    return [ORDER.index(name) if name in ORDER else len(ORDER) for name in part]


def _costs(model: nnx.Module, context: int) -> tuple[TokenCost, ...]:
    caches = _cache_bytes(model, context)
    sides = tuple(caches)

    def side(path: Path) -> str:
        return sides[0] if _of_source(path) else sides[-1]

    matrices, pairs = Counter[str](), Counter[str]()
    for path, size in _matrices(model):
        matrices[side(path)] += 2 * size
    for path, module in nnx.iter_modules(model):
        if isinstance(module, Attention):
            query, output = module.query.kernel, module.output.kernel  # [*, D, N, H], [*, N, Hv, D]
            widths = query.size // query.shape[-3] + output.size // output.shape[-1]
            pairs[side(path)] += 2 * widths * min(context, keys_in_window(path, module) or context)
    return tuple(TokenCost(name, caches[name], matrices[name], pairs[name]) for name in sides)


def keys_in_window(path: Path, attention: Attention) -> int | None:
    """Return the largest number of keys that the window of a layer allows; None without one."""
    window = getattr(attention, "window", None)
    is_causal = path[0] == "decoder"
    return window if window is None else (1 if is_causal else 2) * window + 1


def cache_for(model: nnx.Module, num_sources: int, size: int) -> Any:  # noqa: ANN401 - of `model`
    """Return an empty cache of one row.

    Args:
        model: with a method `new_cache`.
        num_sources: number of tokens that its encoder reads, if it has one.
        size: number of tokens that its decoder reads.
    """
    if not hasattr(model, "encoder"):
        return model.new_cache((), size)
    encoded = model.encode(jnp.zeros(num_sources, jnp.int32), mask=None)
    return model.new_cache((), size, encoder_output=encoded.features)


def _cache_bytes(model: nnx.Module, context: int) -> dict[str, int]:
    """Return the bytes that a token takes in a cache, for each kind of token."""
    if not hasattr(model, "new_cache"):
        return {"token": 0}
    of_target = _growth(lambda model, size: cache_for(model, 1, size), model, context)
    if not hasattr(model, "encoder"):
        return {"token": of_target}
    of_source = _growth(lambda model, size: cache_for(model, size, 1), model, context)
    return {"source token": of_source, "target token": of_target}


def _growth(make: Callable[[nnx.Module, int], object], model: nnx.Module, context: int) -> int:
    """Return the mean number of bytes that each token of a context adds to a cache."""

    def bytes_for(size: int) -> int:
        arrays = jax.tree.leaves(jax.eval_shape(lambda model: make(model, size), model))
        features = [array for array in arrays if jnp.issubdtype(array.dtype, jnp.floating)]
        return sum(array.size * array.dtype.itemsize for array in features)

    more = max(1, context - 1)
    return (bytes_for(1 + more) - bytes_for(1)) // more


def _of_source(path: Path) -> bool:
    """Return whether source tokens are multiplied here, as in keys of cross-attention."""
    precomputed = "cross_attention" in path and path[-2] in ("key", "value")
    return precomputed or path[0] in ("source_embedding", "encoder")


def _matrices(model: nnx.Module) -> Iterator[tuple[Path, int]]:
    """Yield sizes of the matrices that a token is multiplied with, a tied token table included."""
    tied = getattr(model, "output", model) is None
    for path, parameter in _parameters(model):
        if path[-1] == "kernel" or (tied and path[-1] == "tokens" and not _of_source(path)):
            yield path, parameter.size
        elif active := parameter.get_metadata().get("active"):  # of experts
            yield path, round(active * parameter.size)


def _parameters(model: nnx.Module) -> Iterator[tuple[Path, nnx.Param]]:
    yield from nnx.to_flat_state(nnx.state(model, nnx.Param))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, whose columns but the first are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return lines

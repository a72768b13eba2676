"""What a model is made of and what each of its tokens costs, read from shapes alone.

Nothing here needs numbers: a model is given as `jax.eval_shape` makes it, however large it is.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from attention.modules import Attention

Path = tuple[str, ...]

# Parts stand in the order in which a reader meets them; what is not named here comes last.
ORDER = ("embedding", "source_embedding", "target_embedding", "encoder", "decoder")
ORDER += ("self_attention", "cross_attention", "feed_forward", "norms", "tokens", "positions")


class Part(NamedTuple):
    """Parameters of one kind.

    Attributes:
        name: as "decoder self attention".
        parameters: how many, in all layers.
        per_layer: in each of them; None for a part that has no layers.
    """

    name: str
    parameters: int
    per_layer: int | None


class TokenCost(NamedTuple):
    """What one more token costs.

    Attributes:
        token: which one, as "source token".
        cache_bytes: what decoding remembers of it: keys and values of all layers.
        matrix_flops: of a forward pass, in products with parameters.
        attention_flops: of a forward pass, in products of queries with keys, weights with values.
    """

    token: str
    cache_bytes: int
    matrix_flops: int
    attention_flops: int

    @property
    def forward_flops(self) -> int:
        """Of a forward pass."""
        return self.matrix_flops + self.attention_flops

    @property
    def training_flops(self) -> int:
        """Of a forward and a backward pass, which takes twice as many."""
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
        """Describes an encoder, a decoder or both.

        A product of a token with a matrix is 2 FLOPs a parameter, a multiplication and an addition
        (Kaplan et al. 2020, section 2.1). A token that attends to S keys takes 2 S N (H + Hv) more
        in each layer; the section counts half of that, the mean of a causal pass. What is not a
        matrix product is left out.

        Args:
            model: as `jax.eval_shape` makes it.
            context: S.
        """
        return cls(
            _parts(model), _costs(model, context), context, jax.tree.leaves(model)[0].dtype.name
        )

    @property
    def parameters(self) -> int:
        """Of all parts."""
        return sum(part.parameters for part in self.parts)

    def __str__(self) -> str:
        """Two tables."""
        parts = [["parameters", "in all", "per layer", "share"]]
        for name, parameters, per_layer in (*self.parts, Part("total", self.parameters, None)):
            layer = "" if per_layer is None else f"{per_layer:,}"
            parts.append([name, f"{parameters:,}", layer, f"{parameters / self.parameters:.1%}"])
        costs = [
            [
                f"at a context of {self.context:,} tokens",
                *(f"per {one.token}" for one in self.costs),
            ]
        ]
        for name, field in (
            (f"cache, bytes in {self.dtype}", "cache_bytes"),
            ("FLOPs in matrices", "matrix_flops"),
            ("FLOPs in attention", "attention_flops"),
            ("FLOPs of a forward pass", "forward_flops"),
            ("FLOPs in training", "training_flops"),
        ):
            costs.append([name, *(f"{getattr(one, field):,}" for one in self.costs)])
        return "\n".join([*_aligned(parts), "", *_aligned(costs)])


def _parts(model: nnx.Module) -> tuple[Part, ...]:
    totals: dict[Path, list[int]] = {}
    for path, parameter in _parameters(model):
        layers = parameter.shape[0] if "layers" in path else 0
        total = totals.setdefault(_part(path), [0, 0])
        total[0] += parameter.size
        total[1] += parameter.size // layers if layers else 0
    return tuple(
        Part(" ".join(names).replace("_", " "), parameters, per_layer or None)
        for names, (parameters, per_layer) in sorted(totals.items(), key=_place)
    )


def _part(path: Path) -> Path:
    """("decoder", "layers", "self_norm", "scale") belongs to ("decoder", "norms")."""
    names = [name for name in path if name not in ("layers", "kernel", "bias", "scale")][:2]
    return tuple("norms" if name.endswith("norm") else name for name in names)


def _place(part: tuple[Path, list[int]]) -> list[int]:
    return [ORDER.index(name) if name in ORDER else len(ORDER) for name in part[0]]


def _costs(model: nnx.Module, context: int) -> tuple[TokenCost, ...]:
    caches = _cache_bytes(model)
    sides = tuple(caches)

    def side(path: Path) -> str:
        return sides[0] if _of_source(path) else sides[-1]

    matrices = dict.fromkeys(sides, 0)
    for path, size in _matrices(model):
        matrices[side(path)] += 2 * size
    pairs = dict.fromkeys(sides, 0)
    for path, module in nnx.iter_modules(model):
        if isinstance(module, Attention):
            query, output = module.query.kernel, module.output.kernel  # [L, D, N, H], [L, N, Hv, D]
            widths = query.size // query.shape[-3] + output.size // output.shape[-1]
            pairs[side(path)] += 2 * widths
    return tuple(
        TokenCost(name, caches[name], matrices[name], context * pairs[name]) for name in sides
    )


def _cache_bytes(model: nnx.Module) -> dict[str, int]:
    """What one more token adds to a cache, for each kind of token that the model reads."""
    if not hasattr(model, "new_cache"):
        return {"token": 0}
    read = _growth(lambda model, size: model.new_cache((), size), model)
    if not hasattr(model, "encoder"):
        return {"token": read}

    def remember(model: nnx.Module, size: int) -> object:
        return model.remember(model.encode(jnp.zeros(size, jnp.int32), mask=None))

    return {"source token": _growth(remember, model), "target token": read}


def _growth(make: Callable[[nnx.Module, int], object], model: nnx.Module) -> int:
    """Bytes of numbers that what is made for two tokens has more than what is made for one."""

    def bytes_for(size: int) -> int:
        made = jax.tree.leaves(jax.eval_shape(lambda model: make(model, size), model))
        numbers = [array for array in made if jnp.issubdtype(array.dtype, jnp.floating)]
        return sum(array.size * array.dtype.itemsize for array in numbers)

    return bytes_for(2) - bytes_for(1)


def _of_source(path: Path) -> bool:
    """Whether source tokens pass here: also where cross-attention makes keys and values of them."""
    remembered = "cross_attention" in path and path[-2] in ("key", "value")
    return remembered or path[0] in ("source_embedding", "encoder")


def _matrices(model: nnx.Module) -> Iterator[tuple[Path, int]]:
    """What tokens are multiplied with: a table of tokens too, where it is tied to the output."""
    tied = getattr(model, "output", model) is None
    for path, parameter in _parameters(model):
        if path[-1] == "kernel" or (tied and path[-1] == "tokens" and not _of_source(path)):
            yield path, parameter.size


def _parameters(model: nnx.Module) -> Iterator[tuple[Path, nnx.Param]]:
    yield from nnx.to_flat_state(nnx.state(model, nnx.Param))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]

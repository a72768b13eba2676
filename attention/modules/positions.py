"""Position encodings: added to embeddings, rotating queries and keys, or changing scores.

A position encoding is a name in `POSITIONS` with up to three functions of a config. Without a
config, pass its parts to the modules: `Embedding(positions=...)`, `SelfAttention(rotary=...)`,
`Encoder(score=...)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flax import nnx
from jax import Array

from attention.modules.layers import make_table, take_rows
from attention.modules.numbers import check_number
from attention.primitives.choice import one_of
from attention.primitives.positions import SCALINGS, rotary, sinusoidal
from attention.primitives.scores import Score, alibi, alibi_slopes, relative_bias


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary positions: a function `(vectors [..., T, N, H], positions [..., T]) -> vectors`.

    Attributes:
        base: of the wavelengths.
        scaling: for texts longer than those of the training: "none", "linear", "ntk", "llama3" or
            "yarn", or another name in `attention.primitives.positions.SCALINGS`.
        factor: ratio of the longest text to `original_length`.
        original_length: the longest text of the training; used by "llama3" and "yarn".
    """

    base: float = 10_000.0
    scaling: str = "none"
    factor: float = 1.0
    original_length: int = 8_192

    def __post_init__(self) -> None:
        """Check the fields."""
        one_of("rotary.scaling", self.scaling, tuple(SCALINGS))
        for name in ("base", "factor", "original_length"):
            check_number(f"rotary.{name}", getattr(self, name), at_least=1)
        if self.scaling == "none" and self.factor != 1:
            names = ", ".join(name for name in SCALINGS if name != "none")
            raise ValueError(f"rotary.factor={self.factor} needs a rotary.scaling: one of {names}")

    def __call__(self, vectors: Array, positions: Array) -> Array:
        """Rotate queries or keys, as `attention.rotary`."""
        scaling = SCALINGS[self.scaling](self.factor, self.original_length)
        return rotary(vectors, positions, self.base, scaling)


def resolve_scale(scale: float | str, width: int, name: str = "scale") -> float:
    """Return a factor of embeddings, √D for "sqrt_width"; raise a ValueError for other words."""
    if isinstance(scale, str):
        one_of(name, scale, ("sqrt_width",))
        return width**0.5
    check_number(name, scale, above=0)
    return scale


class LearnedPositions(nnx.Module):
    """A table with a vector for each position (Gehring et al. 2017)."""

    def __init__(
        self, max_length: int, width: int, *, scale: float | str = "sqrt_width", **options: object
    ) -> None:
        """Make the table.

        Args:
            max_length: number of positions; a position outside gives NaN.
            width: D.
            scale: factor of the vectors, as in `Embedding`.
            options: `init`, `param_dtype` and `rngs`, as in `make_table`.
        """
        self.table = make_table((max_length, width), ("positions", "embed"), **options)
        self.scale = resolve_scale(scale, width)
        self.max_length = max_length

    def __call__(self, positions: Array, width: int) -> Array:
        """Return the vectors `[..., T, D]` of positions `[..., T]`."""
        return take_rows(self.table[...], positions) * self.scale


@dataclass(frozen=True, kw_only=True)
class Relative:
    """Buckets of relative positions (Raffel et al. 2020, section 2.1).

    Attributes:
        num_buckets: numbers per head.
        max_distance: distances from here on share the last bucket.
    """

    num_buckets: int = 32
    max_distance: int = 128


class RelativeScores(nnx.Module):
    """A learned bias per head and bucket of the distance, shared by the layers of a stack."""

    def __init__(
        self, num_heads: int, relative: Relative = Relative(), *, causal: bool, **options: object
    ) -> None:
        """Make the table, as `make_table`; a causal one has no buckets for keys after the query."""
        init = nnx.initializers.normal(num_heads**-0.5)
        shape = (num_heads, relative.num_buckets)
        self.table = make_table(shape, ("heads", None), init=init, **options)
        self.max_distance = relative.max_distance
        self.causal = causal

    def __call__(self) -> Score:
        """Return the score function for `Context.score`."""
        return relative_bias(self.table[...], max_distance=self.max_distance, causal=self.causal)


class AlibiScores(nnx.Module):
    """Linear biases of the distance (Press et al. 2022)."""

    def __init__(self, num_heads: int) -> None:
        """Take the slopes of the paper for N heads."""
        self.num_heads = num_heads

    def __call__(self) -> Score:
        """Return the score function for `Context.score`."""
        return alibi(alibi_slopes(self.num_heads))


@dataclass(frozen=True, kw_only=True)
class PositionEncoding:
    """What a position encoding makes of a `TransformerConfig`; by default nothing.

    Attributes:
        embed: `(config, rngs)` to `(positions [..., T], D) -> [..., T, D]`, added to embeddings.
        rotary: `(config)` to the function that rotates queries and keys.
        score: `(config, causal, rngs)` to a module that returns a score function for all layers.
        even: name of the field of the config that must be even.
    """

    embed: Callable[..., Any] | None = None
    rotary: Callable[..., Any] | None = None
    score: Callable[..., Any] | None = None
    even: str | None = None


def _learned(config: Any, rngs: nnx.Rngs) -> LearnedPositions:  # noqa: ANN401 - a `TransformerConfig`
    options = {"scale": config.embedding_scale, "init": config.initializer("embedding_init")}
    options |= {"param_dtype": config.param_dtype, "rngs": rngs}
    return LearnedPositions(config.max_length, config.width, **options)


def _relative(config: Any, causal: bool, rngs: nnx.Rngs) -> RelativeScores:  # noqa: ANN401 - the same
    options = {"causal": causal, "param_dtype": config.param_dtype, "rngs": rngs}
    return RelativeScores(config.num_heads, config.relative, **options)


POSITIONS: dict[str, PositionEncoding] = {
    "none": PositionEncoding(),
    "sinusoidal": PositionEncoding(embed=lambda config, rngs: sinusoidal, even="width"),
    "learned": PositionEncoding(embed=_learned),
    "rotary": PositionEncoding(rotary=lambda config: config.rotary, even="head_width"),
    "alibi": PositionEncoding(score=lambda config, causal, rngs: AlibiScores(config.num_heads)),
    "relative": PositionEncoding(score=_relative),
}

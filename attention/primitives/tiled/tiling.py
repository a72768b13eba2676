"""How examples, rows and columns are cut into tiles that fit a cache."""

from dataclasses import dataclass, replace

import jax


@dataclass(frozen=True)
class TileSize:
    """Rows (queries) and columns (keys) of a tile; entries of all tiles computed at once."""

    rows: int
    columns: int
    entries: int


# Larger tiles make better products; smaller ones waste less where a mask cuts them. Those of "cpu"
# were measured; those of "gpu" and "tpu", where kernels come first, were not.
SIZES = {
    "cpu": {"full": TileSize(1024, 512, 2**20), "masked": TileSize(512, 512, 2**20)},
    "gpu": {"full": TileSize(1024, 1024, 2**25), "masked": TileSize(512, 512, 2**25)},
    "tpu": {"full": TileSize(1024, 1024, 2**24), "masked": TileSize(512, 512, 2**24)},
}


def measured_size(masked: bool) -> TileSize:
    """The size of tiles for this platform."""
    return SIZES.get(jax.default_backend(), SIZES["cpu"])["masked" if masked else "full"]


@dataclass(frozen=True)
class Tiling:
    """The cut of B examples with K heads of T rows and S columns each.

    Attributes:
        examples: B.
        heads: K.
        chunk: how many examples and heads are computed at once; divide B and K.
        rows: number of tiles that cover the rows.
        row_size: rows of a tile.
        columns: number of tiles that cover the columns.
        column_size: columns of a tile.
    """

    examples: int
    heads: int
    chunk: tuple[int, int]
    rows: int
    row_size: int
    columns: int
    column_size: int

    @property
    def chunks(self) -> tuple[int, int]:
        """The number of chunks of examples and of heads."""
        return self.examples // self.chunk[0], self.heads // self.chunk[1]

    @property
    def heads_first(self) -> bool:
        """Whether arrays of rows are `[B, K, T, ...]` and not `[B, T, K, ...]`.

        A tile is read faster so, which counts where sequences are short. Where they are long, it
        is not worth the copies that turn inputs and outputs around.
        """
        return self.rows == 1

    @property
    def row_shape(self) -> tuple[int, int, int]:
        """The first three axes of arrays of rows."""
        num_rows, _ = self.padded
        shape = (self.heads, num_rows) if self.heads_first else (num_rows, self.heads)
        return self.examples, *shape

    @property
    def padded(self) -> tuple[int, int]:
        """T and S in whole tiles."""
        return self.rows * self.row_size, self.columns * self.column_size

    def times(self, size: int) -> "Tiling":
        """The cut of `size` times as many examples."""
        return replace(self, examples=size * self.examples)


def cut(size: TileSize, batch: int, heads: int, groups: int, rows: int, columns: int) -> Tiling:
    """Cuts B examples with K heads of T·G rows and S columns.

    Tiles are made equal: 520 rows become two tiles of 264 and not one of 512 and one of 8.
    """
    num_rows, row_size = _equal_parts(rows, size.rows)
    num_columns, column_size = _equal_parts(columns, size.columns)
    at_once = max(1, size.entries // (groups * row_size * column_size))
    some_heads = _largest_divisor(heads, at_once)
    examples = _largest_divisor(batch, at_once // some_heads) if some_heads == heads else 1
    chunk = examples, some_heads
    return Tiling(batch, heads, chunk, num_rows, row_size, num_columns, column_size)


def _largest_divisor(number: int, limit: int) -> int:
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


def _equal_parts(length: int, largest: int, multiple: int = 8) -> tuple[int, int]:
    """How many parts, of which size."""
    parts = -(-length // largest)
    size = -(-length // parts)
    return parts, -(-size // multiple) * multiple

"""What each attention head does, in numbers: means over the queries of many examples."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.analysis.collect import CROSS, Attended, AttentionMaps, Example

BLOCK = 12  # random tokens that are repeated for the induction score
# Columns of the table: name and what it is.
COLUMNS = {
    "entropy": "of the weights of a query, in bits",
    "distance": "mean number of places between query and attended key",
    "first": "weight on the first key",
    "previous": "weight on the key before the query",
    "same": "weight on the key at the place of the query",
    "next": "weight on the key after the query",
    "diagonal": "weight at most one place from the diagonal of the map",
    "induction": "weight on the token after the earlier copy, in a repeated random block",
}


def head_statistics(weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return sums over queries, and the number of queries that each sum counts.

    Args:
        weights: `[..., T, S]`.

    Returns:
        By name, `[..., 2]`: a sum, and over how many queries. A query counts for a key that does
        not exist, such as the one before the first, in no sum.
    """
    num_queries, num_keys = weights.shape[-2:]
    query, key = np.arange(num_queries)[:, None], np.arange(num_keys)
    logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)

    def counted(values: np.ndarray, number: int) -> np.ndarray:
        total = values.sum(axis=(-2, -1), dtype=np.float64)
        return np.stack([total, np.full_like(total, number)], axis=-1)

    def share(place: np.ndarray) -> np.ndarray:
        """Sum the weights of the keys at a place `[T, S]`, over the queries that have one."""
        return counted(np.where(place, weights, 0), int(place.any(axis=-1).sum()))

    # The diagonal of a map that is not square connects its corners.
    diagonal = query * (max(num_keys - 1, 0) / max(num_queries - 1, 1))
    return {
        "entropy": counted(-weights * logs, num_queries),
        "distance": counted(weights * abs(query - key), num_queries),
        "first": share(np.broadcast_to(key == 0, weights.shape[-2:])),
        "previous": share(key == query - 1),
        "same": share(key == query),
        "next": share(key == query + 1),
        "diagonal": share(abs(key - diagonal) <= 1),
    }


def induction_score(weights: np.ndarray, start: int, block: int) -> np.ndarray:
    """Return the mean weight on the token after the earlier copy of the query (Olsson et al. 2022).

    Args:
        weights: self-attention `[..., T, T]` over a block of tokens that is repeated twice.
        start: place of the first token of the block.
        block: number of its tokens.
    """
    query = start + block + np.arange(block)
    return weights[..., query, query - block + 1].mean(axis=-1)


class Block(NamedTuple):
    """An example in which each stack reads a block of random tokens twice.

    Attributes:
        example: what is read.
        starts: place of the first token of the block in each stack.
        size: number of tokens of the block.
    """

    example: Example
    starts: Mapping[str, int]
    size: int


def repeated_block(examples: Sequence[Example], longest: int | None) -> Block | None:
    """Make a block of different random tokens of some examples, None for images or no tokens.

    Args:
        examples: whose special tokens stay at both ends.
        longest: number of positions that the model reads, any if None.
    """
    first, random = examples[0], np.random.default_rng(0)
    if any(ids.ndim > 1 for ids in first.inputs.values()):
        return None
    pools = {
        stack: np.unique(np.concatenate([each.text(stack) for each in examples]))
        for stack in first.inputs
    }
    size = min(BLOCK, *map(len, pools.values()), ((longest or 2 * BLOCK + 2) - 2) // 2)
    if size < 1:
        return None
    inputs, labels, starts = {}, {}, {}
    for stack, ids in first.inputs.items():
        block = random.choice(pools[stack], size, replace=False)
        begin, end = first.text_slice(stack).indices(len(ids))[:2]
        inputs[stack] = np.concatenate([ids[:begin], block, block, ids[end:]])
        starts[stack] = first.special[stack][0]
        labels[stack] = [""] * (sum(first.special[stack]) + 2 * size)
    return Block(Example(inputs, labels, first.special, labels.get("decoder", ())), starts, size)


def heads_table(
    found: Iterable[Attended], block: Block | None = None, repeated: Attended | None = None
) -> list[dict[str, Any]]:
    """Return a row for each head, the lowest entropy of each kind first.

    Args:
        found: of many examples.
        block: of `repeated_block`.
        repeated: what the model attends to in it.
    """
    totals: dict[str, dict[str, np.ndarray]] = {}
    layers: dict[str, Sequence[int]] = {}
    for attended in found:
        for kind, maps in attended.maps.items():
            layers[kind] = maps.layers
            statistics = head_statistics(maps.weights)
            total = totals.setdefault(kind, {name: 0 for name in statistics})
            totals[kind] = {name: total[name] + statistics[name] for name in statistics}
    rows = []
    for kind, total in totals.items():
        induction = None
        if repeated is not None and kind != CROSS:
            induction = induction_score(repeated.maps[kind].weights, block.starts[kind], block.size)
        of_kind = []
        for layer, head in np.ndindex(*total["entropy"].shape[:2]):
            row = {"kind": kind, "layer": layers[kind][layer], "head": head + 1}
            for name, sums in total.items():
                value, number = sums[layer, head]
                row[name] = float(value / number) if number else 0.0
            row["induction"] = "" if induction is None else float(induction[layer, head])
            of_kind.append(row)
        rows += sorted(of_kind, key=lambda row: row["entropy"])
    return rows


def beside(
    rows: Sequence[Mapping[str, Any]], untrained: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rows with those of the same heads of an untrained model in further columns."""
    keys = ("kind", "layer", "head")
    others = {tuple(row[key] for key in keys): row for row in untrained}
    return [
        {
            **row,
            **{
                f"{name} untrained": others[tuple(row[key] for key in keys)][name]
                for name in COLUMNS
            },
        }
        for row in rows
    ]


def changes(found: Sequence[Attended], others: Sequence[Attended]) -> dict[str, np.ndarray]:
    """Return the mean share of the weights of a query that two models place differently.

    It is the total variation distance: 0 for equal weights, 1 for weights on different keys. The
    result is `[layers, N]` by the title of the kind.

    Args:
        found: of one model.
        others: of another model, in the same examples.
    """
    distances: dict[str, list[np.ndarray]] = {}
    for one, other in zip(found, others, strict=True):
        for kind, maps in one.maps.items():
            distance = abs(maps.weights - other.maps[kind].weights).sum(axis=-1) / 2
            distances.setdefault(maps.title, []).append(distance)
    return {title: np.concatenate(each, axis=-1).mean(axis=-1) for title, each in distances.items()}


def visible(untrained: AttentionMaps, layer: int) -> np.ndarray:
    """Return the mask of a layer, bool `[T, S]`, from the weights of an untrained model.

    Its scores are of order one, so that every weight that is not masked is above 0.
    """
    return (untrained.weights[layer] > 0).any(axis=0)

"""What each attention head does, in numbers: means over the queries of many examples."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.analysis.collect import CROSS, Attended, Example

BLOCK = 12  # random tokens that are repeated for the induction score
Head = tuple[str, int, int]  # kind, layer and head, both from 1


def head_statistics(weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return statistics of each query, `[..., T]`; NaN for a query without such a key.

    Args:
        weights: `[..., T, S]`.

    Returns:
        entropy, of the weights in bits; distance, the mean number of positions between query and
        key; the weight on the first key, and on the key before (previous), at (same) and after
        (next) the position of the query.
    """
    query, key = np.arange(weights.shape[-2])[:, None], np.arange(weights.shape[-1])
    logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)

    def weight_on(chosen: np.ndarray) -> np.ndarray:
        chosen = np.broadcast_to(chosen, weights.shape[-2:])
        return np.where(chosen.any(axis=-1), (weights * chosen).sum(axis=-1), np.nan)

    return {
        "entropy": -(weights * logs).sum(axis=-1),
        "distance": (weights * abs(query - key)).sum(axis=-1),
        "first": weight_on(key == 0),
        "previous": weight_on(key == query - 1),
        "same": weight_on(key == query),
        "next": weight_on(key == query + 1),
    }


def induction_score(weights: np.ndarray, start: int, block: int) -> np.ndarray:
    """Return the mean weight on the token after the earlier copy of the query (Olsson et al. 2022).

    Args:
        weights: self-attention `[..., T, T]` over a block of tokens that is repeated twice.
        start: position of the first token of the block.
        block: number of its tokens.
    """
    query = start + block + np.arange(block)
    return weights[..., query, query - block + 1].mean(axis=-1)


class Block(NamedTuple):
    """An example in which each stack reads a block of random tokens twice.

    Attributes:
        example: what is read.
        size: number of tokens of the block.
    """

    example: Example
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
    tokens = {
        stack: np.unique(
            np.concatenate([each.inputs[stack][each.text_slice(stack)] for each in examples])
        )
        for stack in first.inputs
    }
    size = min(BLOCK, *map(len, tokens.values()), ((longest or 2 * BLOCK + 2) - 2) // 2)
    if size < 1:
        return None
    inputs, labels = {}, {}
    for stack, ids in first.inputs.items():
        block = random.choice(tokens[stack], size, replace=False)
        begin, end = first.text_slice(stack).indices(len(ids))[:2]
        inputs[stack] = np.concatenate([ids[:begin], block, block, ids[end:]])
        labels[stack] = [""] * (sum(first.special[stack]) + 2 * size)
    return Block(Example(inputs, labels, first.special, labels.get("decoder", ())), size)


def head_scores(
    passes: Iterable[Attended], block: Block | None = None, repeated: Attended | None = None
) -> dict[Head, dict[str, Any]]:
    """Return the means of `head_statistics` over all queries, and the induction score.

    Args:
        passes: of many examples.
        block: of `repeated_block`.
        repeated: what the model attends to in it.

    Returns:
        By head; a score that no query has is "".
    """
    queries: dict[tuple[Head, str], list[np.ndarray]] = {}
    for attended in passes:
        for kind, maps in attended.maps.items():
            for name, values in head_statistics(maps.weights).items():
                for (layer, head), rows in _by_head(values):
                    queries.setdefault(((kind, maps.layers[layer], head), name), []).append(rows)
    scores: dict[Head, dict[str, Any]] = {}
    for (head, name), rows in queries.items():
        values = np.concatenate(rows)
        known = values[~np.isnan(values)]
        score = float(known.mean(dtype=np.float64)) if len(known) else ""
        scores.setdefault(head, {"induction": ""})[name] = score
    for kind, maps in repeated.maps.items() if repeated and block else ():
        if kind != CROSS:
            start = block.example.special[kind][0]
            for (layer, head), score in _by_head(induction_score(maps.weights, start, block.size)):
                scores[kind, maps.layers[layer], head]["induction"] = float(score)
    return scores


def _by_head(values: np.ndarray) -> Iterable[tuple[tuple[int, int], np.ndarray]]:
    """Yield (index of the layer, number of the head from 1) and the values of each head."""
    for layer, head in np.ndindex(values.shape[:2]):
        yield (layer, head + 1), values[layer, head]


def heads_table(
    trained: Mapping[Head, Mapping[str, Any]], untrained: Mapping[Head, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return a row for each head, the lowest entropy of each kind first.

    Args:
        trained: of `head_scores`.
        untrained: the same of the initial parameters, in columns of their own.
    """
    order = sorted(trained, key=lambda head: (head[0], trained[head]["entropy"]))
    return [
        {"kind": head[0], "layer": head[1], "head": head[2]}
        | trained[head]
        | {f"{name} untrained": score for name, score in untrained[head].items()}
        for head in order
    ]

"""What each attention head does, in numbers: means over the queries of many examples."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from experiments.analysis.collect import CROSS, Attended, Example

BLOCK = 12  # random tokens that are repeated for the induction score


def head_statistics(weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return statistics `[..., T]` of weights `[..., T, S]`; NaN for a query without such a key.

    These are the entropy of the weights in bits, the distance, which is the mean number of
    positions between query and key, and the weight on the first key, and on the key before
    (previous), at (same) and after (next) the position of the query.
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

    `weights` `[..., T, T]` are over a block of so many tokens that is read twice, from `start` on.
    """
    query = start + block + np.arange(block)
    return weights[..., query, query - block + 1].mean(axis=-1)


def repeated_block(examples: Sequence[Example], longest: int | None) -> Example | None:
    """Return an example of random tokens of the examples, each stack of which reads them twice.

    It has at most `longest` positions. There is none of images, or if no example has a token.
    """
    first, random, tokens = examples[0], np.random.default_rng(0), {}
    for stack, ids in first.inputs.items():
        if ids.ndim > 1:
            return None
        texts = [each.inputs[stack][each.text_slice(stack)] for each in examples]
        tokens[stack] = np.unique(np.concatenate(texts))
    size = min(BLOCK, *map(len, tokens.values()), ((longest or 2 * BLOCK + 2) - 2) // 2)
    if size < 1:
        return None
    inputs, labels = {}, {}
    for stack, ids in first.inputs.items():
        block = random.choice(tokens[stack], size, replace=False)
        begin, end = first.text_slice(stack).indices(len(ids))[:2]
        inputs[stack] = np.concatenate([ids[:begin], block, block, ids[end:]])
        labels[stack] = [""] * (sum(first.special[stack]) + 2 * size)
    return Example(inputs, labels, first.special, labels.get("decoder", ()))


def heads_table(
    passes: Iterable[Attended], block: Example | None = None, repeated: Attended | None = None
) -> list[dict[str, Any]]:
    """Return a row for each head: means of `head_statistics` over passes, and the induction score.

    The latter is that of a `block` of `repeated_block`, in which the model attends to `repeated`. A
    score that no query has is "".
    """
    layers: dict[str, Sequence[int]] = {}
    queries: dict[str, dict[str, list[np.ndarray]]] = {}
    for attended in passes:  # one at a time: all maps of a split would fill the memory
        for kind, maps in attended.maps.items():
            layers[kind] = maps.layers
            for name, values in head_statistics(maps.weights).items():
                queries.setdefault(kind, {}).setdefault(name, []).append(values)
    rows = []
    for kind, statistics in queries.items():
        scores = {name: np.concatenate(each, axis=-1) for name, each in statistics.items()}
        if block and repeated and kind != CROSS:
            before, after = block.special[kind]
            size = (len(block.labels[kind]) - before - after) // 2
            induction = induction_score(repeated.maps[kind].weights, before, size)
            scores["induction"] = induction[..., None]
        for index, head in np.ndindex(scores["entropy"].shape[:2]):
            row = {"kind": kind, "layer": layers[kind][index], "head": head + 1, "induction": ""}
            for name, values in scores.items():
                known = values[index, head][~np.isnan(values[index, head])]
                row[name] = float(known.mean(dtype=np.float64)) if len(known) else ""
            rows.append(row)
    return rows

"""How much each source word counts for each target word: attributions beside cross-attention.

A score function maps vectors `[S, D]` to outputs `[T]`, and attributions are `[T, S]`. `baseline`
is `[S, D]`, vectors without information.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from scipy.stats import rankdata

from attention.modules import Context, EncoderDecoder
from attention.modules.context import apply_layer
from attention.primitives import masks
from experiments.analysis.collect import CROSS, DECODER, ENCODER, Attended, Example
from experiments.data.tokenizers import EOS

if TYPE_CHECKING:
    from experiments.tasks.task import Task

POSITIONS = 16  # of both sides: longer sentences are left out, so that one program serves all
NODES = 32  # of the quadrature in one segment of a path
SEGMENTS = 4  # of the path of integrated gradients
DELETED = 5  # source words that are replaced, at most
OCCLUSION = "occlusion by an empty vector"
GRADIENT, INTEGRATED = "gradient times input", "integrated gradients"
METHODS = (OCCLUSION, GRADIENT, INTEGRATED)
RANDOM = "random order"

Score = Callable[[Array], Array]
Explained = tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]  # of `Explainer`


def occlusion(score: Score, vectors: Array, baseline: Array) -> Array:
    """Return what each output loses when one vector is replaced by that of the baseline."""

    def loss(index: Array) -> Array:
        return score(vectors) - score(vectors.at[index].set(baseline[index]))

    return jax.vmap(loss)(jnp.arange(len(vectors))).T


def gradient_times_input(score: Score, vectors: Array, baseline: Array) -> Array:
    """Return the gradient of each output times the difference to the baseline."""
    return jnp.einsum("tsd,sd->ts", jax.jacrev(score)(vectors), vectors - baseline)


def integrated_gradients(score: Score, vectors: Array, baseline: Array) -> Array:
    """Return gradients integrated from the baseline to the vectors (Sundararajan et al. 2017).

    The attributions of an output sum to the difference of its score. Each of `SEGMENTS` equal
    segments of the path has a Gauss-Legendre quadrature.
    """
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    change = vectors - baseline

    def segment(start: Array) -> Array:
        shares = (start + 0.5 + jnp.asarray(nodes / 2, vectors.dtype)) / SEGMENTS
        gradients = jax.vmap(lambda share: jax.jacrev(score)(baseline + share * change))(shares)
        weighted = jnp.asarray(weights / 2, vectors.dtype)
        return jnp.einsum("ntsd,sd,n->ts", gradients, change, weighted)

    return jax.lax.map(segment, jnp.arange(SEGMENTS)).sum(axis=0) / SEGMENTS


def rollout(weights: np.ndarray) -> np.ndarray:
    """Return the attention of the last layer to the inputs of the first: `[T, T]`.

    `weights` `[layers, T, T]` of self-attention are means over heads. Half of each layer is the
    residual connection (Abnar and Zuidema 2020, section 3).
    """
    total = identity = np.eye(weights.shape[-1], dtype=weights.dtype)
    for layer in weights:
        total = (layer + identity) @ total / 2
    return total


def deletion_drops(score: Score, vectors: Array, baseline: Array, attributions: Array) -> Array:
    """Return how much each output loses when 1, 2, … of its inputs are replaced: `[T, DELETED]`.

    The inputs with the largest attributions are replaced first, and never those of -inf.
    """
    ranks = jnp.argsort(jnp.argsort(-attributions, axis=-1), axis=-1)
    ranks = jnp.where(jnp.isneginf(attributions), DELETED, ranks)
    before = score(vectors)

    def loss(number: Array) -> Array:
        inputs = jnp.where((ranks < number)[..., None], baseline, vectors)  # [T, S, D]
        return before - jnp.diagonal(jax.vmap(score)(inputs))

    return jax.lax.map(loss, jnp.arange(1, DELETED + 1)).T


def rank_correlations(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation of each row of two maps `[T, S]`, NaN for constant rows."""
    a, b = (rankdata(rows, axis=-1) for rows in (first, second))  # equal values: their mean rank
    a, b = (ranks - ranks.mean(axis=-1, keepdims=True) for ranks in (a, b))
    norms = np.sqrt((a**2).sum(axis=-1) * (b**2).sum(axis=-1))
    return np.divide((a * b).sum(axis=-1), norms, out=np.full(len(a), np.nan), where=norms > 0)


def embedded(model: EncoderDecoder, source: Array) -> tuple[Array, ...]:
    """Return vectors of source tokens `[B, S]`, of empty ones, and of ends in their place.

    A norm of the encoder does not depend on the length of its input, so gradients grow without
    bound on the way to an empty vector: the baseline of gradients is the end of a sentence.
    """
    embedding = model.source_embedding
    tokens = embedding.tokens if embedding.tokens is not None else model.target_embedding.tokens
    table = tokens[...]
    tables = table, jnp.zeros_like(table), jnp.broadcast_to(table[EOS], table.shape)
    return tuple(embedding(source, table=values) for values in tables)


class Explainer:
    """Computes maps `[T, S]` of one translation, how each target token depends on the source."""

    def __init__(self, task: "Task") -> None:
        """Prepare a program for sentences of at most `POSITIONS` tokens."""
        self._task = task
        self._program = task.learner.apply(maps_and_drops)

    def takes(self, example: Example) -> bool:
        """Return whether an example is short, and has the end of its translation."""
        is_short = max(map(len, example.inputs.values())) <= POSITIONS
        return is_short and example.predicted[-1] == self._task.tokenizers.target.token(EOS)

    def __call__(self, parameters: nnx.State, examples: Sequence[Example]) -> Iterator[Explained]:
        """Yield maps by their names, and what each target token loses by deletion, `[T]` by map.

        The latter is a mean over the deletion of the one to `DELETED` source tokens with the
        largest values of the map.
        """
        passes = self._task.collector(parameters, examples)
        for number, (example, attended) in enumerate(zip(examples, passes, strict=True)):
            source, target = (example.inputs[stack] for stack in (ENCODER, DECODER))
            arrays = source, target, np.append(target[1:], EOS), attention_maps(attended)
            padded = jax.tree.map(
                lambda array: np.pad(array, [(0, POSITIONS - size) for size in array.shape]), arrays
            )
            lengths = np.array([len(source), len(target)])
            results = self._program(parameters, *padded, lengths, jax.random.key(number))
            maps, drops = jax.device_get(results)
            yield (
                {name: values[: len(target), : len(source)] for name, values in maps.items()},
                {name: values[: len(target)] for name, values in drops.items()},
            )


def maps_and_drops(
    model: EncoderDecoder,
    source: Array,
    target: Array,
    predicted: Array,
    attention: Mapping[str, Array],
    lengths: Array,
    rng: Array,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return maps and drops of an `Explainer`, with padding up to `POSITIONS`.

    The decoder reads the ids `target` `[T]` and predicts the ids `predicted` `[T]`; `attention`
    contains more maps, and `lengths` the numbers of valid ids of source and target.
    """
    vectors, empty, end = (batch[0] for batch in embedded(model, source[None]))
    mask = masks.lengths(lengths[:1])

    @jax.jit  # traced once for its many uses
    def score(vectors: Array) -> Array:
        encoded = apply_layer(model.encoder, vectors[None], Context(mask=mask))
        decoded = model.decode(target[None], encoded.features, encoder_mask=mask)
        logits = model.logits(decoded.features)[0].astype(jnp.float32)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), predicted[:, None], axis=-1)[:, 0]
        return jnp.where(jnp.arange(POSITIONS) < lengths[1], chosen, 0)  # not of padding

    maps = {
        OCCLUSION: occlusion(score, vectors, empty),
        GRADIENT: gradient_times_input(score, vectors, end),
        INTEGRATED: integrated_gradients(score, vectors, end),
        **attention,
    }
    is_text = jnp.arange(POSITIONS) < lengths[0] - 1  # the end is never replaced
    ranked = {**maps, RANDOM: jax.random.uniform(rng, maps[OCCLUSION].shape)}
    values = jnp.where(is_text, jnp.stack([*ranked.values()]), -jnp.inf)

    drops = jax.lax.map(lambda each: deletion_drops(score, vectors, empty, each), values)
    return maps, dict(zip(ranked, drops.mean(axis=-1), strict=True))


def attention_maps(attended: Attended) -> dict[str, np.ndarray]:
    """Return cross-attention `[T, S]`, means over heads: of each layer, and combined."""
    cross = attended.maps[CROSS]
    layers = cross.weights.mean(axis=1)
    maps = {f"attention, layer {n}": map_ for n, map_ in zip(cross.layers, layers, strict=True)}
    maps["attention, mean of layers"] = layers.mean(axis=0)
    if ENCODER in attended.maps:
        encoder = attended.maps[ENCODER].weights.mean(axis=1)
        if 1 + len(encoder) == len(attended.hidden_states[ENCODER]):  # all of them attend
            maps["attention after rollout of the encoder"] = layers[-1] @ rollout(encoder)
    return maps


def agreement_table(explained: Sequence[Explained]) -> list[dict[str, Any]]:
    """Return a row for each map of an `Explainer`: rank correlations, and the drop by deletion.

    Correlations with attributions are over the source words, without the end, and a mean over
    target tokens.
    """
    rows = []
    for name in (*explained[0][0], RANDOM):
        row: dict[str, Any] = {"map": name}
        for method in METHODS:
            correlations = [
                rank_correlations(maps[name][:, :-1], maps[method][:, :-1])
                for maps, _ in explained
                if name in maps
            ]
            mean = float(np.nanmean(np.concatenate(correlations))) if correlations else ""
            row[f"rank correlation with {method}"] = mean
        drops = np.concatenate([drops[name] for _, drops in explained])
        rows.append(row | {"drop by deletion, nats": float(drops.mean())})
    return rows

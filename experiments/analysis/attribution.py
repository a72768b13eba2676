"""How much each source word counts for each target word: attributions beside cross-attention.

A score function maps vectors `[S, D]` to outputs `[T]`, and attributions are `[T, S]`. `baseline`
is `[S, D]`, the vectors that stand for no information.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from scipy.stats import rankdata

from attention.modules import Context, EncoderDecoder, Output
from attention.modules.context import apply_layer
from experiments.analysis.collect import DECODER, ENCODER, Example, weights_of
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


def rollout(weights: Array) -> Array:
    """Return the attention of the last layer to the inputs of the first: `[T, T]`.

    `weights` `[layers, T, T]` of self-attention are means over heads. Half of each layer is the
    residual connection (Abnar and Zuidema 2020, section 3).
    """
    total = jnp.eye(weights.shape[-1], dtype=weights.dtype)
    for layer in weights:
        total = (layer + jnp.eye(len(total), dtype=total.dtype)) @ total / 2
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


class SourceVectors:
    """An encoder-decoder whose source tokens are vectors `[B, S, D]`, whatever their ids."""

    def __init__(self, model: EncoderDecoder, vectors: Array) -> None:
        """Replace the source embedding."""
        self._encoder, self._vectors = model.encoder, vectors
        self.decode, self.logits = model.decode, model.logits

    def encode(self, source: Array, **context: Any) -> Output:  # noqa: ANN401 - fields of `Context`
        """Encode the vectors."""
        del source
        return apply_layer(self._encoder, self._vectors, Context(**context))


def embedded(model: EncoderDecoder, source: Array) -> tuple[Array, ...]:
    """Return vectors of source tokens `[B, S]`, of empty ones, and of ends in their place.

    A norm of the encoder does not depend on the length of its input, so gradients grow without
    bound on the way to an empty vector: the baseline of gradients is the end of a sentence.
    """
    embedding = model.source_embedding or model.target_embedding
    tokens = embedding.tokens if embedding.tokens is not None else model.target_embedding.tokens
    table = tokens[...]
    tables = table, jnp.zeros_like(table), jnp.broadcast_to(table[EOS], table.shape)
    return tuple(embedding(source, table=values) for values in tables)


class Explainer:
    """Computes maps `[T, S]` of one translation, how each target token depends on the source."""

    def __init__(self, task: "Task") -> None:
        """Prepare a program for sentences of at most `POSITIONS` tokens."""
        self._task = task
        self._maps = task.learner.apply(self._compute)

    def takes(self, example: Example) -> bool:
        """Return whether an example is short, and has the end of its translation."""
        is_short = max(map(len, example.inputs.values())) <= POSITIONS
        return is_short and example.predicted[-1] == self._task.tokenizers.target.token(EOS)

    def __call__(self, parameters: nnx.State, examples: Sequence[Example]) -> Iterator[Explained]:
        """Yield maps by their names, and what each target token loses by deletion, `[T]` by map.

        The latter is a mean over the deletion of the one to `DELETED` source tokens with the
        largest values of the map.
        """
        for number, example in enumerate(examples):
            rows, lengths = {}, {}
            for stack, ids in example.inputs.items():
                rows[stack] = np.pad(ids, (0, POSITIONS - len(ids)))[None]
                lengths[stack] = np.array([len(ids)], np.int32)
            target, source = (slice(*lengths[stack]) for stack in (DECODER, ENCODER))
            predicted = np.roll(rows[DECODER][0], -1)
            predicted[target.stop - 1] = EOS
            results = self._maps(parameters, rows, lengths, predicted, jax.random.key(number))
            maps, drops = jax.device_get(results)
            yield (
                {name: values[target, source] for name, values in maps.items()},
                {name: values[target] for name, values in drops.items()},
            )

    def _compute(
        self,
        model: EncoderDecoder,
        rows: Mapping[str, Array],
        lengths: Mapping[str, Array],
        predicted: Array,
        rng: Array,
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        vectors, empty, end = (batch[0] for batch in embedded(model, rows[ENCODER]))

        @jax.jit  # traced once for its many uses
        def score(vectors: Array) -> Array:
            replaced = SourceVectors(model, vectors[None])
            output = self._task.attended(replaced, rows, lengths)[DECODER]
            log_probs = jax.nn.log_softmax(output.logits[0].astype(jnp.float32))
            chosen = jnp.take_along_axis(log_probs, predicted[:, None], axis=-1)[:, 0]
            return jnp.where(jnp.arange(POSITIONS) < lengths[DECODER], chosen, 0)  # not of padding

        maps = {
            OCCLUSION: occlusion(score, vectors, empty),
            GRADIENT: gradient_times_input(score, vectors, end),
            INTEGRATED: integrated_gradients(score, vectors, end),
        }
        outputs = self._task.attended(model, rows, lengths, returning=("weights",))
        maps |= attention_maps(outputs)
        is_text = jnp.arange(POSITIONS) < lengths[ENCODER][0] - 1  # the end is never replaced
        ranked = {**maps, RANDOM: jax.random.uniform(rng, maps[OCCLUSION].shape)}
        values = jnp.where(is_text, jnp.stack([*ranked.values()]), -jnp.inf)

        def drop(values: Array) -> Array:
            return deletion_drops(score, vectors, empty, values).mean(axis=-1)

        return maps, dict(zip(ranked, jax.lax.map(drop, values), strict=True))  # one program


def attention_maps(outputs: Mapping[str, Output]) -> dict[str, Array]:
    """Return cross-attention of the only row, means over heads: of each layer, and combined."""

    def means(stack: str, sublayer: str) -> dict[str, Array]:
        layers = enumerate(map(weights_of, outputs[stack].attention or ()), start=1)
        return {
            f"attention, layer {number}": layer[sublayer][0].mean(axis=0)
            for number, layer in layers
            if sublayer in layer
        }

    maps, encoder = means(DECODER, "cross_attention"), [*means(ENCODER, "self_attention").values()]
    across = [*maps.values()]
    maps["attention, mean of layers"] = jnp.stack(across).mean(axis=0)
    if encoder and len(encoder) == len(outputs[ENCODER].attention):
        maps["attention after rollout of the encoder"] = across[-1] @ rollout(jnp.stack(encoder))
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
                if name != RANDOM
            ]
            mean = float(np.nanmean(np.concatenate(correlations))) if correlations else ""
            row[f"rank correlation with {method}"] = mean
        row["drop by deletion, nats"] = float(
            np.mean(np.concatenate([d[name] for _, d in explained]))
        )
        rows.append(row)
    return rows

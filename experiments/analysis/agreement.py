"""Whether cross-attention explains a translation: maps beside attributions of the same model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from attention.modules import Context, EncoderDecoder, Output
from attention.modules.context import apply_layer
from experiments.analysis.attribution import (
    completeness_error,
    deletion_drops,
    gradient_times_input,
    integrated_gradients,
    occlusion,
    rank_correlations,
    rollout,
)
from experiments.analysis.collect import DECODER, ENCODER, Example, weights_of
from experiments.analysis.value_norms import cross_attentions, value_vectors, weighted_norms
from experiments.data.vocabulary import EOS

if TYPE_CHECKING:
    from experiments.learner import TrainState
    from experiments.tasks.translation import Translation

POSITIONS = 16  # of both sides: longer sentences are left out, so that one program serves all
PARTS = 4  # of the path of integrated gradients, at first
DELETED = 5  # source words that are replaced, at most
EMPTY, MEAN = "occlusion by an empty vector", "occlusion by the mean word"
GRADIENT, INTEGRATED = "gradient times input", "integrated gradients"
METHODS = (EMPTY, MEAN, GRADIENT, INTEGRATED)
RANDOM, ERROR = "random order", "completeness error"

Explained = tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]  # of `Explainer`
Alignment = Sequence[tuple[int, int]]  # links (source place, target place) of a sentence


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
    """Return vectors of source tokens `[B, S]`, and three replacements at the same places.

    They are the empty vector, the mean of all words, and the end of a sentence. A norm of the
    encoder does not depend on the length of its input, so gradients grow without bound on the way
    to an empty vector: the baseline of gradients is the end.
    """
    embedding = model.source_embedding or model.target_embedding
    own = embedding.tokens is not None
    table = (embedding if own else model.target_embedding).tokens[...]
    mean = jnp.broadcast_to(table.mean(axis=0), table.shape)
    end = jnp.broadcast_to(table[EOS], table.shape)
    tables = table, jnp.zeros_like(table), mean, end
    return tuple(embedding(source, table=each) for each in tables)


class Explainer:
    """Computes maps `[T, S]` of one translation, how each target token depends on the source."""

    def __init__(self, task: "Translation") -> None:
        """Prepare a program for sentences of at most `POSITIONS` tokens."""
        self._task = task
        self._maps = task.learner.apply(self._compute)

    def __call__(self, parameters: nnx.State, examples: Sequence[Example]) -> Iterator[Explained]:
        """Yield maps and, for each of them, the drops `[T]` by deletion of its largest tokens.

        Args:
            parameters: of the model.
            examples: with given translations, which end with the end of a sentence.
        """
        for number, example in enumerate(examples):
            sizes = {stack: len(ids) for stack, ids in example.inputs.items()}
            rows = {
                stack: np.pad(ids, (0, POSITIONS - len(ids)))[None]
                for stack, ids in example.inputs.items()
            }
            lengths = {stack: np.array([size], np.int32) for stack, size in sizes.items()}
            predicted = np.roll(rows[DECODER][0], -1)
            predicted[sizes[DECODER] - 1] = EOS
            key = jax.random.key(number)
            maps, drops, error = self._maps(parameters, rows, lengths, predicted, key)
            valid = slice(sizes[DECODER]), slice(sizes[ENCODER])
            drops = {name: np.asarray(each)[valid[0]] for name, each in drops.items()}
            drops[ERROR] = np.asarray(error)[valid[0]]
            yield {name: np.asarray(each)[valid] for name, each in maps.items()}, drops

    def _compute(
        self,
        model: EncoderDecoder,
        rows: Mapping[str, Array],
        lengths: Mapping[str, Array],
        predicted: Array,
        rng: Array,
    ) -> tuple[dict[str, Array], dict[str, Array], Array]:
        vectors, empty, mean, end = (each[0] for each in embedded(model, rows[ENCODER]))

        @jax.jit  # traced once for its many uses
        def score(vectors: Array) -> Array:
            replaced = SourceVectors(model, vectors[None])
            output = self._task.attended(replaced, rows, lengths)[DECODER]
            log_probs = jax.nn.log_softmax(output.logits[0].astype(jnp.float32))
            found = jnp.take_along_axis(log_probs, predicted[:, None], axis=-1)[:, 0]
            return jnp.where(jnp.arange(POSITIONS) < lengths[DECODER], found, 0)  # none of padding

        maps = {
            EMPTY: occlusion(score, vectors, empty),
            MEAN: occlusion(score, vectors, mean),
            GRADIENT: gradient_times_input(score, vectors, end),
            INTEGRATED: integrated_gradients(score, vectors, end, parts=PARTS),
        }
        error = completeness_error(maps[INTEGRATED], score, vectors, end)
        maps |= self._attention(model, rows, lengths)
        is_text = jnp.arange(POSITIONS) < lengths[ENCODER][0] - 1  # the end is never replaced
        shown = {**maps, RANDOM: jax.random.uniform(rng, maps[EMPTY].shape)}
        ranked = jnp.where(is_text, jnp.stack([*shown.values()]), -jnp.inf)

        def drop(each: Array) -> Array:
            return deletion_drops(score, vectors, empty, each, DELETED)

        drops = dict(zip(shown, jax.lax.map(drop, ranked), strict=True))  # one program for all maps
        return maps, drops, error

    def _attention(
        self, model: EncoderDecoder, rows: Mapping[str, Array], lengths: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return maps from the weights of attention."""
        outputs = self._task.attended(model, rows, lengths, returning=("weights",))
        weights = [weights_of(each) for each in outputs[DECODER].attention]
        layers = {
            number: each["cross_attention"][0]
            for number, each in enumerate(weights, start=1)
            if "cross_attention" in each
        }
        means = [each.mean(axis=0) for each in layers.values()]
        maps = {
            f"attention, layer {number}": mean for number, mean in zip(layers, means, strict=True)
        }
        maps["attention, mean of layers"] = jnp.stack(means).mean(axis=0)
        encoder = [weights_of(each) for each in outputs[ENCODER].attention or ()]
        if encoder and all("self_attention" in each for each in encoder):
            inside = jnp.stack([each["self_attention"][0].mean(axis=0) for each in encoder])
            maps["attention after rollout of the encoder"] = means[-1] @ rollout(inside)
        source = outputs[ENCODER].features[0]
        for number, attention in cross_attentions(model).items():
            values = value_vectors(attention, source)
            norms = weighted_norms(layers[number], values)
            maps[f"weighted value norms, layer {number}"] = norms
        return maps


def fits(example: Example, end: str) -> bool:
    """Return whether `Explainer` takes an example: a short one with the end of its translation.

    Args:
        example: of a translation.
        end: label of the end, `token(EOS)` of the target tokenizer.
    """
    is_short = max(map(len, example.inputs.values())) <= POSITIONS
    return is_short and example.predicted[-1] == end


def explained(
    task: "Translation", state: "TrainState", split: str, most: int
) -> tuple[list[Explained], list[Alignment]]:
    """Return maps of the first short examples of a split, and the gold links of their tokens.

    Args:
        task: of the run.
        state: of the model.
        split: with given translations.
        most: number of examples.
    """
    examples, alignments = [], []
    for pair in task.first_examples(split, 3 * most):
        example = task.example(state, pair.source, pair.target)
        if fits(example, task.tokenizers.target.token(EOS)) and len(examples) < most:
            examples.append(example)
            alignments.append(example.token_links(pair.alignment))
    return [*task.explainer(state.parameters, examples)], alignments


def agreement_table(
    found: Sequence[Explained], alignments: Sequence[Alignment]
) -> list[dict[str, Any]]:
    """Return a row for each map: rank correlations with attributions, drop by deletion, and links.

    Correlations are over the source words, without the end, and a mean over target tokens.

    Args:
        found: of `Explainer`.
        alignments: gold links of each sentence.
    """
    rows, linked = [], linked_first(found, alignments)
    for name in (*found[0][0], RANDOM):
        row: dict[str, Any] = {"map": name}
        for method in METHODS:
            each = [
                rank_correlations(maps[name][:, :-1], maps[method][:, :-1])
                for maps, _ in found
                if name != RANDOM
            ]
            mean = float(np.nanmean(np.concatenate(each))) if each else ""
            row[f"rank correlation with {method}"] = mean
        drop = np.concatenate([drops[name] for _, drops in found]).mean()
        row["drop by deletion, nats"] = float(drop)
        row |= {"linked word first, %": 100 * linked[name]} if linked else {}
        rows.append(row)
    return rows


def deletion_curves(found: Sequence[Explained]) -> dict[str, np.ndarray]:
    """Return what a target token loses on average with 1, 2, … source words less, by map."""
    names = (*found[0][0], RANDOM)
    return {
        name: np.concatenate([drops[name] for _, drops in found]).mean(axis=0) for name in names
    }


def linked_first(found: Sequence[Explained], alignments: Sequence[Alignment]) -> dict[str, float]:
    """Return the share of target words whose first source word by a map is a linked one.

    Target words without a link do not count. The share of a random order is the expected one. The
    result is empty without links.
    """
    places = [
        (sentence, target, {source for source, each in links if each == target})
        for sentence, links in enumerate(alignments)
        for target in sorted({target for _, target in links})
    ]

    if not places:
        return {}

    def mean(values: Iterable[float]) -> float:
        return float(np.mean([*values]))

    shares = {
        name: mean(
            found[sentence][0][name][target, :-1].argmax() in linked
            for sentence, target, linked in places
        )
        for name in found[0][0]
    }
    words = [next(iter(maps.values())).shape[1] - 1 for maps, _ in found]
    return shares | {RANDOM: mean(len(linked) / words[at] for at, _, linked in places)}


def completeness_note(found: Sequence[Explained]) -> str:
    """Return a sentence about the sums of integrated gradients."""
    errors = np.concatenate([drops[ERROR] for _, drops in found])
    usual, worst = np.quantile(errors, (0.95, 1))
    return (
        f"integrated gradients: the sum is off by at most {usual:.2%} for 95 % of the target "
        f"tokens, by {worst:.2%} for the worst, and by more than 1 % for {np.sum(errors > 0.01)} "
        f"of {len(errors)}"
    )

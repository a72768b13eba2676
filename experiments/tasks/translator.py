"""Translation of plain text with a trained model, on all devices."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attention.decoding import GNMT, Beam, GenerationOutput, Greedy, generate
from attention.modules import Output
from experiments.config.model import SearchPart
from experiments.data.tokenizers import BOS, EOS, Tokenizers
from experiments.devices import compiled
from experiments.files import split_lines
from experiments.processes import gather_to_host
from experiments.sharding import is_replicated, one_copy, padded_rows
from experiments.tasks.prediction import Sentence

LOW_CONFIDENCE = 0.5  # a translation below it is marked
SHORTEST = 32  # tokens: shorter sources are padded rather than compiled for
FEWEST_ROWS = 8  # of a device: fewer are not worth the copies of the parameters


@dataclass(frozen=True)
class Translator:
    """Translates plain text in batches.

    Attributes:
        definition: an `EncoderDecoder` without its parameters.
        tokenizers: of both languages.
        decoding: num_beams, length_penalty, and the number of hypotheses, n_best.
        max_length: largest number of tokens of either side, the end included.
        aligns: whether the model attends to the source; some recurrent ones do not.
    """

    definition: nnx.GraphDef
    tokenizers: Tokenizers
    decoding: SearchPart
    max_length: int
    aligns: bool = True

    def __call__(
        self, parameters: nnx.State, sentences: Sequence[str], *, batch_size: int
    ) -> list[str]:
        """Translate sentences of the data, so many at once; an unknown word is a ValueError."""
        sources = [self.tokenizers.source.encode(sentence) for sentence in sentences]
        targets = self.translate_ids(parameters, sources, batch_size=batch_size)
        return [self._text(ids.tolist()) for ids in targets]

    def translate_ids(
        self, parameters: nnx.State, sources: Sequence[Sequence[int]], *, batch_size: int
    ) -> list[np.ndarray]:
        """Translate lists of ids without their ends; translations that have an end contain it."""
        buckets = lengths_for(self.max_length)
        output = self._generate(parameters, sources, None, buckets=buckets, slots=batch_size)
        return [ids[:length] for ids, length in zip(output.tokens, output.lengths, strict=True)]

    def hypotheses(
        self, parameters: nnx.State, sentences: Sequence[Sentence], *, batch_size: int
    ) -> list[list[dict[str, Any]]]:
        """Return the best translations of each sentence, best first.

        Unknown words are copied to the token that attends to them most. A model without attention
        translates their placeholder.

        Returns:
            Of each translation text and score (the log-probability, in beam search divided by the
            length penalty); confidence, the geometric mean of the probabilities of its tokens, and
            is_uncertain; ids, tokens, with copied words, and log_probs; and alignment, for each
            token the index of the source token with the largest weight, [] without attention.
        """
        sources = [sentence.ids for sentence in sentences]
        longest = 1 + max(map(len, sources), default=0)
        length = min(size for size in lengths_for(self.max_length) if size >= longest)
        options: dict[str, Any] = {"buckets": (length,), "slots": batch_size}
        if self.aligns:
            options |= {"returning": ("weights",), "observe": source_weights}
        output = self._generate(parameters, sources, self.decoding.n_best, **options)
        if output.lengths.ndim == 1:  # without an axis of the n best
            output = jax.tree.map(lambda leaf: leaf[:, None], output)
        return [
            [
                self._hypothesis(sentence, jax.tree.map(lambda leaf, at=(row, n): leaf[at], output))
                for n in np.flatnonzero(output.lengths[row])
            ]
            for row, sentence in enumerate(sentences)
        ]

    def _generate(
        self,
        parameters: nnx.State,
        sources: Sequence[Sequence[int]],
        n_best: int | None,
        **options: Any,  # noqa: ANN401 - of `generate`
    ) -> GenerationOutput:
        num_beams, penalty = self.decoding.num_beams, GNMT(self.decoding.length_penalty)
        return generate(
            nnx.merge(self.definition, parameters),
            [[*source, EOS] for source in sources],
            strategy=Greedy() if num_beams == 1 else Beam(num_beams, n_best, penalty),
            max_tokens=self.max_length,
            stop=EOS,
            start=BOS,
            compile=by_rows,
            **options,
        )

    def _text(self, ids: list[int]) -> str:
        """Return a translation in one line; a model of bytes may generate line feeds."""
        return " ".join(split_lines(self.tokenizers.target.decode(ids)))

    def with_copies(
        self, ids: Sequence[int], weights: np.ndarray, unknown: Mapping[int, str]
    ) -> tuple[list[str], str]:
        """Return the tokens and the text of a translation, with copies of unknown words.

        Weights of cross-attention are `[T, S]`; unknown words are by source place.
        """
        tokenizer = self.tokenizers.target
        tokens = [tokenizer.token(number) for number in ids]
        if not unknown:
            return tokens, self._text(ids)
        written = len(ids) - (ids[-1] == EOS)
        copies, rest = copy_words(weights[:written, :-1], unknown)
        tokens = [copies.get(place, token) for place, token in enumerate(tokens)]
        return tokens, tokenizer.tokens.detokenize([*tokens[:written], *rest])

    def _hypothesis(self, sentence: Sentence, output: GenerationOutput) -> dict[str, Any]:
        valid = slice(int(output.lengths))
        ids, log_probs = output.tokens[valid].tolist(), output.log_probs[valid]
        weights = np.zeros((0, 0))
        if output.observed is not None:  # without the padding of the source
            weights = output.observed[valid, : len(sentence.ids) + 1]
        tokens, text = self.with_copies(ids, weights, sentence.unknown if self.aligns else {})
        confidence = float(np.exp(np.mean(log_probs)))
        return {
            "text": text,
            "score": float(output.scores),
            "confidence": confidence,
            "is_uncertain": confidence < LOW_CONFIDENCE,
            "ids": ids,
            "tokens": tokens,
            "log_probs": log_probs.tolist(),
            "alignment": weights.argmax(axis=-1).tolist() if self.aligns else [],
        }


def lengths_for(max_length: int) -> list[int]:
    """Return the source lengths to compile for: `max_length`, its half, and so on."""
    lengths = [max_length]
    while lengths[0] >= 2 * SHORTEST:
        lengths.insert(0, -(-lengths[0] // 2))
    return lengths


def source_weights(output: Output) -> Array:
    """Return the mean weight of each source token, `[B, S]`, for one target token per row."""
    means = [
        layer["cross_attention"]["weights"].mean(axis=(-3, -2))  # over heads and the one query
        for layer in output.attention
        if layer.get("cross_attention") is not None
    ]
    return jnp.mean(jnp.stack(means), axis=0)


def copy_words(weights: np.ndarray, words: Mapping[int, str]) -> tuple[dict[int, str], list[str]]:
    """Align source words with target tokens, one to one, the largest weight `[T, S]` first.

    A target token whose largest weight is on another word translates that one, and is kept. Returns
    the word of each aligned target place, and the words for which no target token is left.
    """
    copies: dict[int, str] = {}
    rest = dict(words)
    free = [t for t, place in enumerate(weights.argmax(axis=-1)) if place in words]
    pairs = [(weights[t, s], t, s) for t in free for s in words]
    for _, target, source in sorted(pairs, key=lambda pair: -pair[0]):
        if target not in copies and source in rest:
            copies[target] = rest.pop(source)
    return copies, [*rest.values()]


def by_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function(parameters, *arrays)` with the rows of its arrays on several devices.

    Parameters that are sharded stay so. Of replicated ones, each device uses its own copy; several
    processes have to call the function with the same arrays.

    Args:
        function: maps parameters and arrays `[B, *]` to arrays `[B, *]`, each row independent of
            the others. Its arrays may be padded with rows of zeros.
    """

    def divided(parameters: Any, *arrays: Array) -> Any:  # noqa: ANN401 - any pytrees
        rows, mesh = len(arrays[0]), _mesh_of_rows(len(arrays[0]))
        if mesh.size == 1:
            return function(parameters, *arrays)
        spec = PartitionSpec("data")
        share = jax.shard_map(
            function,
            mesh=mesh,
            in_specs=(PartitionSpec(), *[spec] * len(arrays)),
            out_specs=spec,
            check_vma=False,
        )
        results = share(parameters, *(padded_rows(array, mesh.size) for array in arrays))
        return jax.tree.map(lambda array: array[:rows], results)

    independent, whole = compiled(divided), compiled(function)

    def run(parameters: Any, *arrays: Array) -> Any:  # noqa: ANN401 - the same
        if jax.process_count() > 1:
            arrays = tuple(map(np.asarray, arrays))  # for the devices of all processes
        if not is_replicated(parameters):
            return gather_to_host(whole(parameters, *arrays))
        mesh = _mesh_of_rows(len(arrays[0]))
        if mesh.size == 1:
            return independent(one_copy(parameters), *arrays)
        # No copy is made where a device has the parameters.
        parameters = jax.device_put(parameters, NamedSharding(mesh, PartitionSpec()))
        return gather_to_host(independent(parameters, *arrays))

    return run


def _mesh_of_rows(rows: int) -> Mesh:
    """Return a mesh of the most devices with at least `FEWEST_ROWS` rows each.

    Of several processes, it has all devices, or one of this process.
    """
    number = max(1, min(jax.device_count(), rows // FEWEST_ROWS))
    if jax.process_count() > 1 and number < jax.device_count():
        number = 1
    devices = jax.local_devices() if number == 1 else jax.devices()
    return Mesh(np.array(devices[:number]), ("data",))

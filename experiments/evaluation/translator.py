"""Translation of plain text with a trained model."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from attention.decoding import GNMT, Beam, GenerationOutput, Greedy, StoppingCriteria, generate
from attention.modules import Output
from experiments.compilation import compiled
from experiments.data.tokenizers import Tokenizers
from experiments.data.vocabulary import BOS, EOS
from experiments.training.sharding import by_rows

REPLACEMENT = "\ufffd"  # in place of bytes that are not UTF-8
SHORTEST = 32  # tokens: shorter sources are padded rather than compiled for


class Hypothesis(NamedTuple):
    """A translation, and how it was scored.

    Attributes:
        text: in the target language.
        score: its log-probability divided by the length penalty.
        tokens: its tokens, with the end if it has one.
        log_probs: of each of them.
        alignment: for each of them the index of the source token with the largest weight; empty for
            a model without attention.
    """

    text: str
    score: float
    tokens: list[str]
    log_probs: list[float]
    alignment: list[int]


class Translator:
    """Translate plain text in batches.

    Attributes:
        aligns: whether the model attends to the source.
    """

    def __init__(
        self,
        definition: nnx.GraphDef,
        tokenizers: Tokenizers,
        *,
        max_length: int,
        stopping: StoppingCriteria,
        num_beams: int,
        length_penalty: float,
        n_best: int = 1,
        aligns: bool = True,
    ) -> None:
        """Prepare translation with a model.

        Args:
            definition: an `EncoderDecoder` without its parameters.
            tokenizers: of both languages.
            max_length: largest number of source tokens, the end included.
            stopping: when a translation ends.
            num_beams: of beam search; 1 for greedy decoding.
            length_penalty: alpha of `attention.decoding.GNMT`.
            n_best: number of hypotheses that `details` returns.
            aligns: whether the model attends to the source; some recurrent ones do not.
        """
        self._definition = definition
        self._tokenizers = tokenizers
        self._max_length = max_length
        self._stopping = stopping
        self.aligns = aligns
        penalty = GNMT(length_penalty)
        self._strategy = Greedy() if num_beams == 1 else Beam(num_beams, length_penalty=penalty)
        self._detailed = Beam(num_beams, n_best, penalty)
        self._weights = compiled(self._cross_attention_weights)

    def encode(self, sentence: str) -> list[int]:
        """Return the ids of a sentence as a person types it.

        Raises:
            ValueError: an empty sentence, one too long for the model, an unknown word, or bytes
                that are not UTF-8.
        """
        if REPLACEMENT in sentence:
            raise ValueError("the sentence has bytes that are no UTF-8")
        ids = self._tokenizers.source.read(sentence)
        if not ids:
            raise ValueError("the sentence is empty")
        if len(ids) + 1 > self._max_length:
            raise ValueError(
                f"the sentence has {len(ids)} tokens, and the model reads at most "
                f"{self._max_length - 1}"
            )
        return ids

    def __call__(
        self, parameters: nnx.State, sentences: Sequence[str], *, batch_size: int
    ) -> list[str]:
        """Translate sentences.

        Args:
            parameters: of the model.
            sentences: plain text.
            batch_size: number of sentences that are decoded at once.

        Raises:
            ValueError: as `encode`.
        """
        sources = [self.encode(sentence) for sentence in sentences]
        targets = self.translate_ids(parameters, sources, batch_size=batch_size)
        return [self._text(ids.tolist()) for ids in targets]

    def translate_ids(
        self, parameters: nnx.State, sources: Sequence[Sequence[int]], *, batch_size: int
    ) -> list[np.ndarray]:
        """Translate lists of ids.

        Args:
            parameters: of the model.
            sources: without their ends.
            batch_size: number of sentences that are decoded at once.

        Returns:
            The ids of each translation, with the end if it has one.

        Raises:
            ValueError: a source longer than the model can read.
        """
        longest = max(map(len, sources), default=0)
        if longest >= self._max_length:
            raise ValueError(f"the model reads at most {self._max_length - 1} ids, got {longest}")
        output = self._generate(
            parameters,
            [[*source, EOS] for source in sources],
            strategy=self._strategy,
            buckets=lengths_for(self._max_length),
            slots=batch_size,
            max_steps=self._max_steps,
        )
        return [ids[:length] for ids, length in zip(output.tokens, output.lengths, strict=True)]

    def details(self, parameters: nnx.State, sentence: str) -> tuple[list[str], list[Hypothesis]]:
        """Return the tokens of a sentence with the end, and its best translations, best first.

        Raises:
            ValueError: as `encode`.
        """
        source = [*self.encode(sentence), EOS]
        length = min(each for each in lengths_for(self._max_length) if each >= len(source))
        aligned = {"returning": ("weights",), "observe": aligned_source} if self.aligns else {}
        output = self._generate(
            parameters, [source], strategy=self._detailed, buckets=(length,), **aligned
        )
        found = [
            self._hypothesis(jax.tree.map(lambda leaf, at=at: leaf[0, at], output))
            for at in range(output.scores.shape[1])
            if output.lengths[0, at]
        ]
        return [self._tokenizers.source.token(number) for number in source], found

    def cross_attention(
        self, parameters: nnx.State, source: str, target: str
    ) -> tuple[np.ndarray, list[str], list[str]]:
        """Return the weights of cross-attention for a given translation.

        Returns:
            Weights `[layers, N, T, S]`, the S source tokens and the T target tokens, both with
            their ends.
        """
        read, said = self.encode(source), self._tokenizers.target.encode(target)
        weights = self._weights(parameters, jnp.array([[*read, EOS]]), jnp.array([[BOS, *said]]))
        return (
            np.asarray(weights)[:, 0],
            [self._tokenizers.source.token(number) for number in (*read, EOS)],
            [self._tokenizers.target.token(number) for number in (*said, EOS)],
        )

    def _generate(
        self, parameters: nnx.State, sources: list[list[int]], **options: object
    ) -> GenerationOutput:
        return generate(
            nnx.merge(self._definition, parameters),
            sources,
            max_tokens=self._stopping.max_tokens,
            min_tokens=self._stopping.min_tokens,
            stop=self._stopping.stop,
            pad=self._stopping.pad,
            start=BOS,
            compile=by_rows,
            **options,
        )

    def _max_steps(self, length: int) -> int:
        """Return the number of steps that nearly all translations of such sources need."""
        if length == self._max_length:
            return self._stopping.max_tokens
        return max(3 * length // 2, self._stopping.min_tokens)

    def _text(self, ids: list[int]) -> str:
        """Return a translation in one line; a model of bytes may generate line feeds."""
        return " ".join(self._tokenizers.target.decode(ids).splitlines())

    def _hypothesis(self, output: GenerationOutput) -> Hypothesis:
        valid = slice(int(output.lengths))
        ids = output.tokens[valid].tolist()
        return Hypothesis(
            text=self._text(ids),
            score=float(output.scores),
            tokens=[self._tokenizers.target.token(number) for number in ids],
            log_probs=output.log_probs[valid].tolist(),
            alignment=[] if output.observed is None else output.observed[valid].tolist(),
        )

    def _cross_attention_weights(
        self, parameters: nnx.State, source: Array, target: Array
    ) -> Array:
        model = nnx.merge(self._definition, parameters)
        encoded = model.encode(source, mask=None).features
        output = model.decode(target, encoded, encoder_mask=None, returning=("weights",))
        return jnp.stack(cross_weights(output))


def lengths_for(max_length: int) -> list[int]:
    """Return the source lengths to compile for: `max_length`, its half, and so on."""
    lengths = [max_length]
    while lengths[0] >= 2 * SHORTEST:
        lengths.insert(0, -(-lengths[0] // 2))
    return lengths


def cross_weights(output: Output) -> list[Array]:
    """Return the weights `[..., N, T, S]` of each layer with cross-attention."""
    layers = (layer.get("cross_attention") for layer in output.attention)
    return [results["weights"] for results in layers if results is not None]


def aligned_source(output: Output) -> Array:
    """Return the source token with the largest mean weight, `[B]`, of one target token per row."""
    means = [weights.mean(axis=(-3, -2)) for weights in cross_weights(output)]
    return jnp.argmax(jnp.mean(jnp.stack(means), axis=0), axis=-1)

"""A trained model as a function from sentences to sentences."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from attention.decoding import Answer, Rules, attending, beam_search, greedy
from attention.modules.transformer import EncoderDecoder
from attention.modules.unrolled import unrolled
from attention.primitives import masks
from experiments.compilation import compiled
from experiments.data.batching import Buckets, EncodedPair, evaluation_batches, pad_batch
from experiments.data.tokenizers import Tokenizers
from experiments.data.vocabulary import BOS, EOS, PAD
from experiments.training.sharding import by_rows


class Hypothesis(NamedTuple):
    """A translation, and how it came about.

    Attributes:
        text: of the target language.
        score: its log-probability over the length penalty.
        tokens: what was said, with the end if it came in time.
        log_probs: of each of them.
        alignment: for each of them the place of the source token that was looked at most, from 0;
            empty for a model that looks at none.
    """

    text: str
    score: float
    tokens: list[str]
    log_probs: list[float]
    alignment: list[int]


class Translator:
    """Translates plain text in batches."""

    def __init__(
        self,
        definition: nnx.GraphDef,
        tokenizers: Tokenizers,
        *,
        bucket_lengths: Sequence[int],
        max_length: int,
        beam: int,
        alpha: float,
        n_best: int = 1,
        aligns: bool = True,
    ) -> None:
        """Prepares translation for a model.

        Args:
            definition: an `EncoderDecoder` without its parameters.
            tokenizers: of both languages.
            bucket_lengths: the source lengths to compile for; `max_length` comes on top.
            max_length: the most tokens the model can read or say.
            beam: hypotheses that are followed; 1 is greedy.
            alpha: of the length penalty of `attention.decoding.beam_search`.
            n_best: how many hypotheses `details` has.
            aligns: whether the model attends to the source, as some recurrent ones do not.
        """
        self._tokenizers = tokenizers
        self._bucket_lengths = sorted({*bucket_lengths, max_length})
        self._max_length = max_length

        def translate(parameters: nnx.State, source: Array, source_lengths: Array) -> Array:
            model = nnx.merge(definition, parameters)
            decode = greedy if beam == 1 else partial(beam_search, beam=beam, alpha=alpha)
            tokens = say(model, source, source_lengths, max_length, decode).tokens
            return tokens if beam == 1 else tokens[:, 0]

        def details(parameters: nnx.State, source: Array, source_lengths: Array) -> Answer:
            model = nnx.merge(definition, parameters)
            decode = partial(beam_search, beam=beam, alpha=alpha, n_best=n_best)
            return say(model, source, source_lengths, max_length, decode, aligns=aligns)

        def look(parameters: nnx.State, source: Array, target: Array) -> Array:
            model = nnx.merge(definition, parameters)
            memory = model.encode(source, mask=None)
            _, extras = model.decode(target, memory, memory_mask=None, returning=("weights",))
            return extras["cross"]["weights"]

        self._translate = by_rows(translate)
        self._details = compiled(details)
        self._look = compiled(look)

    def encode(self, sentence: str) -> list[int]:
        """The ids of a sentence as a person types it.

        Raises:
            ValueError: an empty sentence, one too long for the model, or an unknown word.
        """
        ids = self._tokenizers.source.read(sentence)
        if not ids:
            raise ValueError("the sentence is empty")
        if len(ids) + 1 > self._max_length:
            raise ValueError(
                f"the sentence has {len(ids)} words, and the model reads at most "
                f"{self._max_length - 1}"
            )
        return ids

    def __call__(
        self, parameters: nnx.State, sentences: Sequence[str], *, batch_tokens: int
    ) -> list[str]:
        """Translates each sentence.

        Args:
            parameters: of the model.
            sentences: plain text.
            batch_tokens: source positions that are translated at once.
        """
        pairs = [EncodedPair(self.encode(sentence), ()) for sentence in sentences]
        buckets = Buckets(pairs, self._bucket_lengths, max(batch_tokens, self._max_length))
        translations = [""] * len(sentences)
        for members, batch in evaluation_batches(buckets):
            # Rows that are left repeat others: who reads nothing may speak to the last token.
            rows = np.arange(len(batch.source)) % len(members)
            said = self._translate(parameters, batch.source[rows], batch.source_lengths[rows])
            for member, ids in zip(members, np.asarray(said), strict=False):
                translations[member] = self._text(ids.tolist())
        return translations

    def details(self, parameters: nnx.State, sentence: str) -> tuple[list[str], list[Hypothesis]]:
        """The tokens of a sentence with their end, and its best translations, the best first.

        Raises:
            ValueError: as `encode`.
        """
        read = self.encode(sentence)
        length = min(length for length in self._bucket_lengths if length > len(read))
        batch = pad_batch([EncodedPair(read, ())], 1, length)
        answer = self._details(parameters, batch.source, batch.source_lengths)
        found = [
            self._hypothesis(jax.tree.map(lambda leaf, at=at: np.asarray(leaf[0, at]), answer))
            for at in range(answer.scores.shape[1])
            if answer.lengths[0, at]
        ]
        return [self._tokenizers.source.token(number) for number in (*read, EOS)], found

    def _text(self, ids: list[int]) -> str:
        """What was said on one line, for a model that spells bytes can say a line feed."""
        return " ".join(self._tokenizers.target.decode(ids).splitlines())

    def _hypothesis(self, answer: Answer) -> Hypothesis:
        said = slice(int(answer.lengths))
        tokens = answer.tokens[said].tolist()
        return Hypothesis(
            text=self._text(tokens),
            score=float(answer.scores),
            tokens=[self._tokenizers.target.token(number) for number in tokens],
            log_probs=answer.log_probs[said].tolist(),
            alignment=[] if answer.observed is None else answer.observed[said].tolist(),
        )

    def cross_attention(
        self, parameters: nnx.State, source: str, target: str
    ) -> tuple[np.ndarray, list[str], list[str]]:
        """What the decoder looks at while it says a given translation.

        Returns:
            Weights `[layers, N, T, S]`, the S words it reads and the T words it says, both with
            their end.
        """
        read, said = self.encode(source), self._tokenizers.target.encode(target)
        weights = self._look(parameters, jnp.array([[*read, EOS]]), jnp.array([[BOS, *said]]))
        return (
            np.asarray(weights)[:, 0],
            [self._tokenizers.source.token(number) for number in (*read, EOS)],
            [self._tokenizers.target.token(number) for number in (*said, EOS)],
        )


def say(
    model: EncoderDecoder,
    source: Array,
    source_lengths: Array,
    target_length: int,
    decode: Callable[..., Answer],
    *,
    aligns: bool = False,
) -> Answer:
    """Says a translation, word for word.

    Args:
        model: the model.
        source: `[B, S]` ids.
        source_lengths: `[B]`.
        target_length: the most tokens said, the end included; an answer that needs more is cut.
        decode: `(step, state, start, rules) -> Answer`, as `attention.decoding.greedy`.
        aligns: whether what is observed of each token is the source token that was looked at most,
            over all layers and heads together.
    """
    mask = masks.lengths(source_lengths)
    memory = model.remember(model.encode(source, mask=mask))
    model = unrolled(model)
    returning = ("weights",) if aligns else ()

    def read(target: Array, cache: object) -> tuple[Array, Array | None, object]:
        features, extras, cache = model.decode(
            target, memory, memory_mask=mask, cache=cache, returning=returning
        )
        return model.logits(features), _most_seen(extras) if aligns else None, cache

    begin = jnp.full(len(source), BOS, jnp.int32)
    rules = Rules(end=EOS, pad=PAD, max_length=target_length)
    step, state = attending(read, model.new_cache((len(source),), target_length), begin)
    return decode(step, state, begin, rules, observe=lambda state: state.seen)


def _most_seen(extras: dict[str, dict[str, Array]]) -> Array:
    """Of weights `[layers, B, N, 1, S]`, the largest of each row: `[B]`."""
    return jnp.argmax(jnp.mean(extras["cross"]["weights"], axis=(0, 2, 3)), axis=-1)

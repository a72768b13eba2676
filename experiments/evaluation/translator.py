"""A trained model as a function from sentences to sentences."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from attention.decoding import Answer, Rules, beam_search, cached, greedy
from attention.modules.transformer import EncoderDecoder
from attention.modules.unrolled import unrolled
from attention.primitives import masks
from attention.primitives.cache import Cache
from experiments.compilation import compiled
from experiments.data.batching import Buckets, EncodedPair, evaluation_batches
from experiments.data.tokenizers import Tokenizers
from experiments.data.vocabulary import BOS, EOS, PAD


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
    ) -> None:
        """Prepares translation for a model.

        Args:
            definition: an `EncoderDecoder` without its parameters.
            tokenizers: of both languages.
            bucket_lengths: the source lengths to compile for; `max_length` comes on top.
            max_length: the most tokens the model can read or say.
            beam: hypotheses that are followed; 1 is greedy.
            alpha: of the length penalty of `attention.decoding.beam_search`.
        """
        self._tokenizers = tokenizers
        self._bucket_lengths = sorted({*bucket_lengths, max_length})
        self._max_length = max_length

        def translate(parameters: nnx.State, source: Array, source_lengths: Array) -> Array:
            model = nnx.merge(definition, parameters)
            decode = greedy if beam == 1 else partial(_best_of_beam, beam=beam, alpha=alpha)
            return say(model, source, source_lengths, max_length, decode)

        def look(parameters: nnx.State, source: Array, target: Array) -> Array:
            model = nnx.merge(definition, parameters)
            memory = model.encode(source, mask=None)
            _, extras = model.decode(target, memory, memory_mask=None, returning=("weights",))
            return extras["cross"]["weights"]

        self._translate = compiled(translate)
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
            said = self._translate(parameters, batch.source, batch.source_lengths)
            for member, ids in zip(members, np.asarray(said), strict=False):
                translations[member] = self._tokenizers.target.decode(ids.tolist())
        return translations

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
) -> Array:
    """Says a translation, word for word.

    Args:
        model: the model.
        source: `[B, S]` ids.
        source_lengths: `[B]`.
        target_length: the most tokens said, the end included; an answer that needs more is cut.
        decode: `(step, state, start, rules) -> Answer`, as `attention.decoding.greedy`.

    Returns:
        `[B, target_length]` ids.
    """
    mask = masks.lengths(source_lengths)
    memory = model.remember(model.encode(source, mask=mask))
    model = unrolled(model)

    def read(target: Array, cache: Cache) -> tuple[Array, Cache]:
        features, _, cache = model.decode(target, memory, memory_mask=mask, cache=cache)
        return model.logits(features), cache

    cache = model.new_cache((len(source),), target_length)
    begin = jnp.full(len(source), BOS, jnp.int32)
    rules = Rules(end=EOS, pad=PAD, max_length=target_length)
    return decode(cached(read), cache, begin, rules).tokens


def _best_of_beam(*args: object, **options: float) -> Answer:
    return jax.tree.map(lambda leaf: leaf[:, 0], beam_search(*args, **options))

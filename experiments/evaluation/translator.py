"""A trained model as a function from sentences to sentences."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from attention.decoding import Rules, cached, greedy
from attention.modules.transformer import EncoderDecoder
from attention.primitives import masks
from attention.primitives.cache import Cache
from experiments.compilation import compiled
from experiments.data.batching import Buckets, EncodedPair, evaluation_batches
from experiments.data.translation import Vocabularies
from experiments.data.vocabulary import BOS, EOS, PAD


class Translator:
    """Translates plain text, greedily and in batches."""

    def __init__(
        self,
        definition: nnx.GraphDef,
        vocabularies: Vocabularies,
        *,
        bucket_lengths: Sequence[int],
        max_length: int,
    ) -> None:
        """Prepares translation for a model.

        Args:
            definition: an `EncoderDecoder` without its parameters.
            vocabularies: of both languages.
            bucket_lengths: the source lengths to compile for; `max_length` comes on top.
            max_length: the most tokens the model can read or say.
        """
        self._vocabularies = vocabularies
        self._bucket_lengths = sorted({*bucket_lengths, max_length})
        self._max_length = max_length

        def translate(parameters: nnx.State, source: Array, source_lengths: Array) -> Array:
            # French needs some more words than English; an answer that needs more is cut.
            target_length = min(max_length, source.shape[1] * 3 // 2 + 8)
            model = nnx.merge(definition, parameters)
            return translate_greedily(model, source, source_lengths, target_length)

        def look(parameters: nnx.State, source: Array, target: Array) -> Array:
            model = nnx.merge(definition, parameters)
            memory = model.encode(source, mask=None)
            _, extras = model.decode(target, memory, memory_mask=None, returning=("weights",))
            return extras["cross"]["weights"]

        self._translate = compiled(translate)
        self._look = compiled(look)

    def encode(self, sentence: str) -> list[int]:
        """The ids of a sentence; its full stop and the case of a word that has but one are free.

        Raises:
            ValueError: an empty sentence, one too long for the model, or an unknown word.
        """
        words = self._vocabularies.tokens.tokenize(sentence.rstrip().removesuffix("."))
        if not words:
            raise ValueError("the sentence is empty")
        if len(words) + 1 > self._max_length:
            raise ValueError(
                f"the sentence has {len(words)} words, and the model reads at most "
                f"{self._max_length - 1}"
            )
        vocabulary = self._vocabularies.source
        return vocabulary.encode([vocabulary.respell(word) for word in words])

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
                words = self._vocabularies.target.decode(ids.tolist())
                translations[member] = self._vocabularies.tokens.detokenize(words)
        return translations

    def cross_attention(
        self, parameters: nnx.State, source: str, target: str
    ) -> tuple[np.ndarray, list[str], list[str]]:
        """What the decoder looks at while it says a given translation.

        Returns:
            Weights `[layers, N, T, S]`, the S words it reads and the T words it says, both with
            their end.
        """
        words = self._vocabularies.tokens.tokenize(target)
        read, said = self.encode(source), self._vocabularies.target.encode(words)
        weights = self._look(parameters, jnp.array([[*read, EOS]]), jnp.array([[BOS, *said]]))
        return (
            np.asarray(weights)[:, 0],
            [self._vocabularies.source.words[number] for number in (*read, EOS)],
            [self._vocabularies.target.words[number] for number in (*said, EOS)],
        )


def translate_greedily(
    model: EncoderDecoder, source: Array, source_lengths: Array, target_length: int
) -> Array:
    """Says the likeliest translation, word for word.

    Args:
        model: the model.
        source: `[B, S]` ids.
        source_lengths: `[B]`.
        target_length: the most tokens said, the end included.

    Returns:
        `[B, target_length]` ids.
    """
    mask = masks.lengths(source_lengths)
    memory = model.remember(model.encode(source, mask=mask))

    def read(target: Array, cache: Cache) -> tuple[Array, Cache]:
        features, _, cache = model.decode(target, memory, memory_mask=mask, cache=cache)
        return model.logits(features), cache

    cache = model.new_cache((len(source),), target_length)
    begin = jnp.full(len(source), BOS, jnp.int32)
    rules = Rules(end=EOS, pad=PAD, max_length=target_length)
    return greedy(cached(read), cache, begin, rules).tokens

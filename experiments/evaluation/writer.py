"""Continuation of a text by a trained language model."""

from collections.abc import Iterator

import jax
from flax import nnx
from ml_collections import ConfigDict

from attention.decoding import Greedy, Sample, stream
from attention.modules import POSITIONS
from attention.primitives.choice import one_of
from experiments.compilation import compiled
from experiments.data.corpus import Language
from experiments.errors import check_at_least, check_seed

STRATEGIES = ("greedy", "sample")


def check_decoding(config: ConfigDict) -> None:
    """Check `config.decoding`.

    Raises:
        ValueError: in one sentence.
    """
    one_of("decoding.strategy", config.strategy, STRATEGIES)
    check_at_least("decoding.max_tokens", config.max_tokens, 1)
    check_seed("decoding.seed", config.seed)
    sampling(config)


def sampling(config: ConfigDict) -> Sample:
    """Return the sampling that `config.decoding` describes; top_k=0 and min_p=0 mean none.

    Raises:
        ValueError: a temperature, number or probability out of range.
    """
    return Sample(
        temperature=config.temperature,
        top_k=config.top_k or None,
        top_p=None if config.top_p == 1 else config.top_p,
        min_p=config.min_p or None,
    )


class Writer:
    """Continue a text, token by token."""

    def __init__(self, definition: nnx.GraphDef, language: Language, config: ConfigDict) -> None:
        """Prepare the generation.

        Args:
            definition: a `LanguageModel` without its parameters.
            language: of the model.
            config: of the run; its `decoding` chooses the strategy.
        """
        self._definition = definition
        self._language = language
        self._config = config

    def __call__(self, parameters: nnx.State, prompt: str) -> Iterator[str]:
        """Yield the continuation of a prompt in pieces, one for each token.

        Args:
            parameters: of the model.
            prompt: a text.

        Raises:
            ValueError: a prompt with unknown characters or words, or one that is too long.
        """
        decoding, ids = self._config.decoding, self._language.encode(prompt)
        is_sampling = decoding.strategy == "sample"
        return stream(
            nnx.merge(self._definition, parameters),
            ids.tolist(),
            strategy=sampling(decoding) if is_sampling else Greedy(),
            max_tokens=decoding.max_tokens,
            stop=() if self._language.end < 0 else self._language.end,  # -1: nothing ends a text
            rng=jax.random.key(decoding.seed) if is_sampling else None,
            tokenizer=self._language,
            buckets=(self._prompt_size(len(ids)),),
            compile=compiled,
        )

    def _prompt_size(self, length: int) -> int:
        """Return the length that prompts are padded to, the same for all prompts.

        Raises:
            ValueError: a longer prompt.
        """
        longest, kind = self._config.model.max_length, self._config.model.positions
        if length > longest:
            raise ValueError(
                f"a prompt of {length} tokens is longer than the {longest} that the model reads"
            )
        if POSITIONS[kind].embed is None:
            return longest  # older tokens leave the cache
        more = self._config.decoding.max_tokens
        if length + more > longest:
            raise ValueError(
                f"a prompt of {length} tokens and {more} more need {length + more} positions, and "
                f"{kind} ones end at {longest}: lower decoding.max_tokens"
            )
        return longest - more

"""Continuation of a text by a trained language model."""

from collections.abc import Iterator, Sequence

import jax
from flax import nnx

from attention.decoding import Greedy, Sample, stream
from attention.modules import POSITIONS
from experiments.compilation import compiled
from experiments.config import Config
from experiments.config.decoding import SamplingPart
from experiments.data.tokenizers import Tokenizer
from experiments.data.vocabulary import EOS


def sampling(config: SamplingPart) -> Sample:
    """Return the sampling that a config describes; top_k=0 and min_p=0 mean none."""
    return Sample(
        temperature=config.temperature,
        top_k=config.top_k or None,
        top_p=None if config.top_p == 1 else config.top_p,
        min_p=config.min_p or None,
    )


class Writer:
    """Continue a text, token by token."""

    def __init__(
        self,
        definition: nnx.GraphDef,
        tokenizer: Tokenizer,
        config: Config,
        *,
        begin: Sequence[int],
        has_end: bool,
    ) -> None:
        """Prepare the generation.

        Args:
            definition: a `LanguageModel` without its parameters.
            tokenizer: of the model.
            config: of the run; its `decoding` chooses the strategy.
            begin: ids before each prompt.
            has_end: whether a token ends a text.
        """
        self._definition = definition
        self._tokenizer = tokenizer
        self._begin = begin
        self._stop = EOS if has_end else ()
        self._config = config

    def __call__(self, parameters: nnx.State, prompt: str) -> Iterator[str]:
        """Yield the continuation of a prompt in pieces, one for each token.

        Args:
            parameters: of the model.
            prompt: a text.

        Raises:
            ValueError: a prompt with unknown characters or words, one that is too long, or an empty
                one where nothing precedes it.
        """
        decoding, ids = self._config.decoding, [*self._begin, *self._tokenizer.read(prompt)]
        if not ids:
            raise ValueError("the prompt is empty")
        is_sampling = decoding.strategy == "sample"
        return stream(
            nnx.merge(self._definition, parameters),
            ids,
            strategy=sampling(decoding) if is_sampling else Greedy(),
            max_tokens=decoding.max_tokens,
            stop=self._stop,
            rng=jax.random.key(decoding.seed) if is_sampling else None,
            tokenizer=self._tokenizer,
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

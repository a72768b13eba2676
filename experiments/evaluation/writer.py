"""A trained language model as a function from a beginning to what it says next."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from attention.decoding import Filter, MinP, Rules, Temperature, TopK, TopP, prefill, stream
from attention.modules.language_model import LanguageModel
from attention.modules.positions import SCHEMES
from attention.modules.transformer import Caches
from attention.modules.unrolled import unrolled
from attention.primitives.choice import one_of
from experiments.data.corpus import Language
from experiments.errors import check_at_least, check_seed

STRATEGIES = ("greedy", "sample")


def check_decoding(config: ConfigDict) -> None:
    """Checks that `config.decoding` says how to go on.

    Raises:
        ValueError: in one sentence.
    """
    one_of("decoding.strategy", config.strategy, STRATEGIES)
    check_at_least("decoding.length", config.length, 1)
    check_seed("decoding.seed", config.seed)
    filters(config)


def filters(config: ConfigDict) -> tuple[Filter, ...]:
    """What may be drawn by `config.decoding`, narrowed by each field after the one before it.

    top_k=0, top_p=1 and min_p=0 rule nothing out.

    Raises:
        ValueError: a temperature, number or mass that makes no sense.
    """
    chosen: list[Filter] = [Temperature(config.temperature)]
    chosen += [TopK(config.top_k)] if config.top_k else []
    chosen += [TopP(config.top_p)]
    chosen += [MinP(config.min_p)] if config.min_p else []
    return tuple(chosen)


class Writer:
    """Goes on with a text, token by token."""

    def __init__(self, definition: nnx.GraphDef, language: Language, config: ConfigDict) -> None:
        """Prepares the writing.

        Args:
            definition: a `LanguageModel` without its parameters.
            language: of the model.
            config: of the run; `decoding` of it says how to go on.
        """
        self._language = language
        self._config = config
        self._filters = filters(config.decoding)

        def read(
            model: LanguageModel, tokens: Array, cache: Caches, lengths: Array | None = None
        ) -> tuple[Array, Caches]:
            return model(tokens, cache=cache, lengths=lengths)

        # The model is a part of the state, or every sampling would compile its parameters in.
        def step(
            state: tuple[LanguageModel, Caches], tokens: Array
        ) -> tuple[Array, tuple[LanguageModel, Caches]]:
            model, cache = state
            logits, cache = read(model, tokens[:, None], cache)
            return logits[:, 0], (model, cache)

        self._definition, self._read, self._step = definition, jax.jit(read), step

    def __call__(self, parameters: nnx.State, prompt: str) -> Iterator[str]:
        """Yields what comes after a prompt, in pieces as they are said.

        Args:
            parameters: of the model.
            prompt: a text.

        Raises:
            ValueError: a prompt with what the model has not learned, or that is too long for it.
        """
        decoding, ids = self._config.decoding, self._language.encode(prompt)
        model = unrolled(nnx.merge(self._definition, parameters))
        cache = self._cache(model, len(ids))
        # Padded, so that prompts of all lengths are one shape.
        prompts = np.zeros((1, self._config.model.max_length), np.int32)
        prompts[0, : len(ids)] = ids
        cache, start = prefill(
            lambda tokens, cache, lengths: self._read(model, tokens, cache, lengths),
            cache,
            jnp.asarray(prompts),
            jnp.array([len(ids)]),
        )
        rules = Rules(end=self._language.end, pad=0, max_length=decoding.length)
        keys = None
        if decoding.strategy == "sample":
            keys = jax.random.split(jax.random.key(decoding.seed), 1)
        said = stream(self._step, (model, cache), start, rules, keys, filters=self._filters)
        return self._pieces(said)

    def _cache(self, model: LanguageModel, num_read: int) -> Caches:
        """Room for prompt and answer; a ring, where positions know no end."""
        longest = self._config.model.max_length
        needed = num_read + self._config.decoding.length
        kind = self._config.model.positions
        if num_read > longest:
            raise ValueError(
                f"a prompt of {num_read} tokens is longer than the {longest} that the model reads"
            )
        if needed > longest and SCHEMES[kind].is_added:
            raise ValueError(
                f"a prompt of {num_read} tokens and {self._config.decoding.length} more need "
                f"{needed} positions, and {kind} ones end at {longest}: lower decoding.length"
            )
        return model.new_cache((1,), longest, ring=needed > longest)

    def _pieces(self, said: Iterator[Array]) -> Iterator[str]:
        """Each token with what stands between it and the one before."""
        ids: list[int] = []
        text = ""
        for tokens in said:
            ids += np.asarray(tokens).tolist()
            if ids[-1] == self._language.end:
                return
            before, text = text, self._language.join(self._language.vocabulary.decode(ids))
            yield text[len(before) :]

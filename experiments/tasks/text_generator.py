"""Continuation of a text by a trained language model."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from flax import nnx

from attention.decoding import GenerationOutput, Greedy, Sample, generate, stream
from attention.modules import POSITIONS
from experiments.config import Config
from experiments.config.parts import SamplingPart
from experiments.data.tokenizers import EOS, Tokenizer
from experiments.devices import compiled
from experiments.processes import gather_to_host
from experiments.sharding import one_copy
from experiments.tasks.prediction import Prediction, Sentence, read_sentence


def sampling(config: SamplingPart) -> dict[str, Any]:
    """Return strategy and random key; top_k=0 and min_p=0 mean none."""
    if config.strategy == "greedy":
        return {"strategy": Greedy(), "rng": None}
    strategy = Sample(
        temperature=config.temperature,
        top_k=config.top_k or None,
        top_p=None if config.top_p == 1 else config.top_p,
        min_p=config.min_p or None,
    )
    return {"strategy": strategy, "rng": jax.random.key(config.seed)}


def generated(output: GenerationOutput) -> dict[str, Any]:
    """Return the text of one answer and the probability of each of its tokens, as JSON values."""
    log_probs = output.log_probs[0, : int(output.lengths[0])]
    return {"text": output.text[0], "probabilities": [math.exp(number) for number in log_probs]}


@dataclass(frozen=True)
class Continuation:
    """Decodes what follows a prompt, which may begin with a blank or inside of a word.

    Attributes:
        tokenizer: of the model.
        prompt: its ids.
    """

    tokenizer: Tokenizer
    prompt: tuple[int, ...]

    @cached_property
    def _before(self) -> str:
        return self.tokenizer.decode(self.prompt)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text that the ids add to the prompt."""
        text = self.tokenizer.decode([*self.prompt, *ids])
        if text.startswith(self._before):
            return text[len(self._before) :]
        return self.tokenizer.decode(ids)  # bytes that are no text may change those before them


@dataclass(frozen=True)
class TextGenerator:
    """Continues a text, token by token.

    Attributes:
        definition: a `LanguageModel` without its parameters.
        tokenizer: of the model.
        config: of the run; its `decoding` chooses the strategy.
        begin: ids before each prompt; texts that have a begin have an end too.
    """

    definition: nnx.GraphDef
    tokenizer: Tokenizer
    config: Config
    begin: tuple[int, ...]

    def read(self, prompt: str, max_tokens: int | None = None) -> Sentence:
        """Read a prompt as a person types it, which at most `max_tokens` tokens follow.

        Raises:
            ValueError: a prompt with an unknown character, one that is too long, or an empty one
                where nothing precedes it.
        """
        if self.begin and not prompt.strip():
            sentence = Sentence([], text=prompt)
        else:
            longest = self.config.model.max_length
            sentence = read_sentence(self.tokenizer, prompt, longest=longest)
        self._prompt_size(len(self.begin) + len(sentence.ids), max_tokens)
        return sentence

    def __call__(self, parameters: nnx.State, sentence: Sentence) -> Iterator[str]:
        """Yield the continuation of a prompt in pieces, one for each token."""
        model, ids, options = self._arguments(parameters, sentence)
        return stream(model, ids, **options)

    def predict(self, parameters: nnx.State, sentence: Sentence) -> Prediction:
        """Return a prompt and its continuation, which is generated when it is used."""
        prompt = sentence.text.strip() if self.begin else sentence.text  # as it is read

        def pieces() -> Iterator[str]:
            yield prompt
            yield from self(parameters, sentence)

        def details() -> dict[str, Any]:
            model, ids, options = self._arguments(parameters, sentence)
            return {"prompt": prompt, **generated(generate(model, [ids], **options))}

        return Prediction(pieces(), details, sentence.note(self.tokenizer))

    def ids(self, parameters: nnx.State, sentence: Sentence, max_tokens: int) -> list[int]:
        """Return the ids of a prompt and of at most `max_tokens` tokens, the most probable ones.

        They are at most `model.max_length` together.
        """
        ids = [*self.begin, *sentence.ids]
        room = self.config.model.max_length - len(ids)
        max_tokens = min(max_tokens, self.config.decoding.max_tokens, room)
        if not max_tokens:
            return ids
        model, ids, options = self._arguments(parameters, sentence, max_tokens)
        output = generate(model, [ids], **options | {"strategy": Greedy(), "rng": None})
        return [*ids, *output.tokens[0, : int(output.lengths[0])].tolist()]

    def _arguments(
        self, parameters: nnx.State, sentence: Sentence, max_tokens: int | None = None
    ) -> tuple[nnx.Module, list[int], dict[str, Any]]:
        """Return model, ids and options of `generate`."""
        decoding, ids = self.config.decoding, [*self.begin, *sentence.ids]
        options = sampling(decoding) | {
            "max_tokens": decoding.max_tokens if max_tokens is None else max_tokens,
            "stop": EOS if self.begin else (),
            "tokenizer": Continuation(self.tokenizer, tuple(ids)),
            "buckets": (self._prompt_size(len(ids), max_tokens),),
            "compile": compiled,
        }
        return nnx.merge(self.definition, gather_to_host(one_copy(parameters))), ids, options

    def _prompt_size(self, length: int, max_tokens: int | None) -> int:
        """Return the length that prompts are padded to; a longer one is a ValueError."""
        longest, kind = self.config.model.max_length, self.config.model.positions
        more = self.config.decoding.max_tokens if max_tokens is None else max_tokens
        if POSITIONS[kind].embed is None:
            more = 0  # older tokens leave the cache
        if length + more > longest:
            raise ValueError(
                f"a prompt of {length} tokens and {more} more need {length + more} positions, and "
                f"the model has {longest}: shorten it, or lower decoding.max_tokens"
            )
        return longest - more

"""Continuation of a text by a trained language model."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from flax import nnx

from attention.decoding import GenerationOutput, Greedy, Sample, generate, stream
from attention.modules import POSITIONS
from experiments.compilation import compiled
from experiments.config import Config
from experiments.config.model import SamplingPart
from experiments.data.tokenizers import Tokenizer
from experiments.data.vocabulary import EOS
from experiments.inference.prediction import Prediction
from experiments.inference.sentence import Sentence, read_sentence
from experiments.processes import gather_to_host
from experiments.sharding import one_copy


def sampling(config: SamplingPart) -> Sample:
    """Return the sampling that a config describes; top_k=0 and min_p=0 mean none."""
    return Sample(
        temperature=config.temperature,
        top_k=config.top_k or None,
        top_p=None if config.top_p == 1 else config.top_p,
        min_p=config.min_p or None,
    )


def generated(output: GenerationOutput) -> dict[str, Any]:
    """Return the text of one answer and the probability of each of its tokens, as JSON values."""
    log_probs = output.log_probs[0, : int(output.lengths[0])]
    return {"text": output.text[0], "probabilities": [math.exp(each) for each in log_probs]}


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

    @property
    def encode(self) -> Callable[..., list[int]]:
        """The function of the tokenizer from a text to ids."""
        return self.tokenizer.encode

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text that the ids add to the prompt."""
        text = self.tokenizer.decode([*self.prompt, *ids])
        if text.startswith(self._before):
            return text[len(self._before) :]
        return self.tokenizer.decode(ids)  # bytes that are no text may change those before them


class TextGenerator:
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
        self.begin = begin
        self._stop = EOS if has_end else ()
        self._config = config

    def read(self, prompt: str, max_tokens: int | None = None) -> Sentence:
        """Read a prompt as a person types it.

        Args:
            prompt: a line.
            max_tokens: the most tokens that follow it; `decoding.max_tokens` if None.

        Raises:
            ValueError: a prompt with an unknown character, one that is too long, or an empty one
                where nothing precedes it.
        """
        if self.begin and not prompt.strip():
            sentence = Sentence([], {})
        else:
            longest = self._config.model.max_length
            sentence = read_sentence(self._tokenizer, prompt, longest=longest)
        self._prompt_size(len(self.begin) + len(sentence.ids), max_tokens)
        return sentence

    def __call__(self, parameters: nnx.State, sentence: Sentence) -> Iterator[str]:
        """Yield the continuation of a prompt in pieces, one for each token."""
        model, ids, options = self._arguments(parameters, sentence)
        return stream(model, ids, **options)

    def predict(self, parameters: nnx.State, prompt: str, sentence: Sentence) -> Prediction:
        """Return a prompt and its continuation, which is generated when it is used."""
        if self.begin:
            prompt = prompt.strip()  # as it is read

        def pieces() -> Iterator[str]:
            yield prompt
            yield from self(parameters, sentence)

        def details() -> dict[str, Any]:
            model, ids, options = self._arguments(parameters, sentence)
            return {"prompt": prompt, **generated(generate(model, [ids], **options))}

        return Prediction(pieces(), details, sentence.note(self._tokenizer))

    def ids(self, parameters: nnx.State, sentence: Sentence, max_tokens: int) -> list[int]:
        """Return the ids of a prompt and of at most `max_tokens` tokens, the most probable ones.

        They are at most `model.max_length` together.
        """
        ids, decoding = [*self.begin, *sentence.ids], self._config.decoding
        room = self._config.model.max_length - len(ids)
        max_tokens = min(max_tokens, decoding.max_tokens, room)
        if not max_tokens:
            return ids
        model, ids, options = self._arguments(parameters, sentence, max_tokens)
        options |= {"strategy": Greedy(), "rng": None}
        output = generate(model, [ids], **options)
        return [*ids, *output.tokens[0, : int(output.lengths[0])].tolist()]

    def _arguments(
        self, parameters: nnx.State, sentence: Sentence, max_tokens: int | None = None
    ) -> tuple[nnx.Module, list[int], dict[str, Any]]:
        """Return model, ids and options of `generate`."""
        decoding, ids = self._config.decoding, [*self.begin, *sentence.ids]
        is_sampling = decoding.strategy == "sample"
        options = {
            "strategy": sampling(decoding) if is_sampling else Greedy(),
            "max_tokens": decoding.max_tokens if max_tokens is None else max_tokens,
            "stop": self._stop,
            "rng": jax.random.key(decoding.seed) if is_sampling else None,
            "tokenizer": Continuation(self._tokenizer, tuple(ids)),
            "buckets": (self._prompt_size(len(ids), max_tokens),),
            "compile": compiled,
        }
        return nnx.merge(self._definition, gather_to_host(one_copy(parameters))), ids, options

    def _prompt_size(self, length: int, max_tokens: int | None) -> int:
        """Return the length that prompts are padded to, the same for all with equal `max_tokens`.

        Args:
            length: of a prompt.
            max_tokens: as in `read`.

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
        more = self._config.decoding.max_tokens if max_tokens is None else max_tokens
        if length + more > longest:
            raise ValueError(
                f"a prompt of {length} tokens and {more} more need {length + more} positions, and "
                f"{kind} ones end at {longest}: lower decoding.max_tokens"
            )
        return longest - more

"""Language modelling: a decoder predicts the next token of a text, and continues texts."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from attention.decoding import Beam, Greedy, Sample, generate, stream
from attention.modules import POSITIONS, LanguageModel
from attention.primitives import masks
from experiments.analysis.collect import Example
from experiments.config.parts import DecoderModel, LabelTrainPart, SamplingPart, TextBatchPart
from experiments.data import pipeline
from experiments.data.packing import PackedBatch
from experiments.data.tokenizers import BOS, EOS, SPECIALS, Tokenizer
from experiments.errors import UsageError
from experiments.experts import make_layer
from experiments.learner import TrainState
from experiments.registry import TaskParts, task
from experiments.sharding import compiled, gather_to_host, one_copy
from experiments.tasks.prediction import Prediction, Sentence, read_sentence
from experiments.tasks.task import Losses, Task

SAMPLED = 200  # tokens of a sample
CONTINUED = 16  # tokens that the model adds to a text whose attention is shown
EVALUATED_ROWS = 256  # windows of running text in a batch that is measured


@task(
    "language_model",
    TaskParts(
        reads=("characters", "text"),
        models={"transformer": DecoderModel},
        batch=TextBatchPart,
        train=LabelTrainPart,
        decoding=SamplingPart,
    ),
)
class LanguageModeling(Task[pipeline.TextBatch | PackedBatch]):
    """A decoder that reads running text, or packed rows of the sources of examples."""

    def model(self, rngs: nnx.Rngs) -> LanguageModel:
        """As in `Task`."""
        settings, size = self.config.model, len(self.tokenizers.source)
        make = settings.experts and partial(make_layer, settings, settings.experts)
        return LanguageModel.from_config(settings, vocab_size=size, rngs=rngs, make_layer=make)

    def training_batches(self) -> pipeline.Windows | pipeline.ShuffledBatches[PackedBatch]:
        """Random windows of running text, or packed rows."""
        batch, seed = self.config.batch, self.config.seed
        if self.source.is_running:
            ids, size = self._running("train"), batch.tokens // batch.row_length
            return pipeline.Windows(ids, context=batch.row_length, size=size, seed=seed)
        layout = pipeline.PackedRows([batch.row_length], batch.tokens)
        return pipeline.ShuffledBatches(self.ids("train"), layout, seed=seed)

    def batches(self, split: str) -> pipeline.Windows | pipeline.SortedBatches[PackedBatch]:
        """As in `Task`."""
        batch = self.config.batch
        if self.source.is_running:
            ids = self._running(split)
            size = min(EVALUATED_ROWS, -(-len(ids) // batch.row_length))
            return pipeline.Windows(ids, context=batch.row_length, size=size)
        return pipeline.SortedBatches(
            self.ids(split), pipeline.PackedRows([batch.row_length], batch.tokens)
        )

    def _running(self, split: str) -> np.ndarray:
        """Return the ids of a running text that is longer than a row."""
        ids, context = self.ids(split).ids, self.config.batch.row_length
        if len(ids) <= context:
            raise UsageError(
                f"the {split} split has {len(ids)} characters: batch.row_length={context} needs "
                f"at least {context + 1}"
            )
        return ids

    def loss(
        self, model: LanguageModel, batch: pipeline.TextBatch | PackedBatch, rng: Array | None
    ) -> Losses:
        """As in `Task`."""
        options: dict[str, Any] = {"rng": rng, **self.on_mesh}
        if self.config.model.experts is not None:  # which padding, also that of rows, must not use
            options["lengths"] = jnp.sum(batch.counted, axis=-1, dtype=jnp.int32)
        if isinstance(batch, PackedBatch):  # texts of a row do not attend to each other
            mask = masks.segments(batch.segments)
            options |= {"mask": mask, "embedding_positions": batch.positions}
        output = model(batch.inputs, **options)
        objective = self.objective(training=rng is not None)
        return objective(output.logits, batch.labels, batch.counted), output.losses

    @property
    def begin(self) -> tuple[int, ...]:
        """Ids before each prompt; texts that have a begin have an end too."""
        return () if self.source.is_running else (BOS,)

    def read(self, line: str) -> Sentence:
        """Read a prompt; one without room for its continuation is a ValueError."""
        sentence = self._sentence(line)
        self._prompt_size(sentence)
        return sentence

    def _sentence(self, line: str) -> Sentence:
        if self.begin and not line.strip():
            return Sentence([], text=line)
        return read_sentence(self.tokenizers.source, line, longest=self.config.model.max_length)

    def answers(self, state: TrainState, inputs: Sequence[Sentence]) -> Iterator[Prediction]:
        """Continue each prompt."""
        model, tokenizer = self._model(state), self.tokenizers.source
        for sentence in inputs:
            ids = [*self.begin, *sentence.ids]
            prompt = sentence.text.strip() if self.begin else sentence.text  # as it is read
            options = sampling(self.config.decoding) | {
                "stop": EOS if self.begin else (),
                "tokenizer": Continuation(tokenizer, tuple(ids)),
                "buckets": (self._prompt_size(sentence),),
            }
            answer = continuation(prompt, model, ids, options)
            yield answer._replace(note=sentence.note(tokenizer))

    def _model(self, state: TrainState) -> nnx.Module:
        parameters = gather_to_host(one_copy(state.parameters))
        return nnx.merge(self.learner.definition, parameters)

    def _prompt_size(self, sentence: Sentence) -> int:
        """Return the length that prompts are padded to; a longer one is a ValueError."""
        longest, kind = self.config.model.max_length, self.config.model.positions
        # Without a table of positions, older tokens leave the cache.
        more = self.config.decoding.max_tokens if POSITIONS[kind].embed is not None else 0
        length = len(self.begin) + len(sentence.ids)
        if length + more > longest:
            raise ValueError(
                f"a prompt of {length} tokens and {more} more need {length + more} positions, and "
                f"the model has {longest}: shorten it, or lower decoding.max_tokens"
            )
        return longest - more

    def example(self, state: TrainState, source: str, target: str | None = None) -> Example:
        """As in `Task`; if the target is None, the most probable tokens continue the text."""
        sentence, begin = self._sentence(source), [SPECIALS[number] for number in self.begin]
        ids, more = [*self.begin, *sentence.ids], []
        tokenizer, longest = self.tokenizers.source, self.config.model.max_length
        room = min(CONTINUED, self.config.decoding.max_tokens, longest - len(ids))
        if target is None and room > 0:
            options = sampling(replace(self.config.decoding, strategy="greedy", max_tokens=room))
            options |= {"stop": EOS if self.begin else (), "buckets": (longest - room,)}
            output = generate(self._model(state), [ids], **options)
            more = output.tokens[0, : int(output.lengths[0])].tolist()
        return Example(
            {"decoder": np.array([*ids, *more])},
            {"decoder": [*begin, *sentence.tokens(tokenizer), *map(tokenizer.token, more)]},
            {"decoder": (len(begin), 0)},
            unknown={"decoder": [len(begin) + place for place in sentence.unknown]},
            continuation=len(more),
        )

    def sample(self, state: TrainState) -> str:
        """Write a text from nothing, or from its first character."""
        prompt = self.tokenizers.source.token(0) if self.source.is_running else ""
        (answer,) = self.predict(state, [prompt or " "])
        return "".join(islice(answer.text, 1, 1 + SAMPLED))


def sampling(config: SamplingPart) -> dict[str, Any]:
    """Return options of `generate`; top_k=0 and min_p=0 mean none."""
    options = {"max_tokens": config.max_tokens, "compile": compiled}
    if config.strategy == "greedy":
        return options | {"strategy": Greedy(), "rng": None}
    strategy = Sample(
        temperature=config.temperature,
        top_k=config.top_k or None,
        top_p=None if config.top_p == 1 else config.top_p,
        min_p=config.min_p or None,
    )
    return options | {"strategy": strategy, "rng": jax.random.key(config.seed)}


def continuation(
    prompt: str, model: nnx.Module, ids: list[int], options: dict[str, Any]
) -> Prediction:
    """Return a prompt and its continuation, which is generated when it is used.

    The details are its text and the probability of each of its tokens.
    """

    def details() -> dict[str, Any]:
        output = generate(model, [ids], **options)
        log_probs = output.log_probs[0, : int(output.lengths[0])]
        probabilities = [math.exp(number) for number in log_probs]
        return {"prompt": prompt, "text": output.text[0], "probabilities": probabilities}

    def pieces() -> Iterator[str]:
        yield prompt
        if isinstance(options["strategy"], Beam):
            yield details()["text"]
        else:
            yield from stream(model, ids, **options)

    return Prediction(pieces(), details)


class Continuation(NamedTuple):
    """Decodes what follows a prompt, which may begin with a blank or inside of a word."""

    tokenizer: Tokenizer  # of the model
    prompt: tuple[int, ...]  # its ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text that the ids add to the prompt."""
        before, text = (self.tokenizer.decode([*self.prompt, *more]) for more in ((), ids))
        # Bytes that are no text may change those before them.
        return text[len(before) :] if text.startswith(before) else self.tokenizer.decode(ids)

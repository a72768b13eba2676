"""Language modelling: a decoder predicts the next token of a text, and continues texts."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from attention.modules import LanguageModel
from attention.primitives import masks
from experiments.analysis.collect import Example
from experiments.config.parts import DecoderModel, LabelTrainPart, SamplingPart, TextBatchPart
from experiments.data.packing import PackedBatch
from experiments.data.pipeline import (
    FixedWindows,
    PackedRows,
    RandomWindows,
    ShuffledBatches,
    SortedBatches,
    TextBatch,
)
from experiments.data.tokenizers import BOS
from experiments.errors import UsageError
from experiments.experts import make_layer
from experiments.learner import TrainState
from experiments.losses import TokenLosses
from experiments.registry import TaskParts, task
from experiments.tasks.prediction import Prediction, Sentence
from experiments.tasks.task import Examples, Ids, Task
from experiments.tasks.text_generator import TextGenerator

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
class LanguageModeling(Task[TextBatch | PackedBatch]):
    """A decoder that reads running text, or packed rows of the sources of examples."""

    def model(self, rngs: nnx.Rngs) -> LanguageModel:
        """As in `Task`."""
        settings, experts = self.config.model, self.config.model.experts
        make = None if experts is None else partial(make_layer, settings, experts)
        vocab_size = len(self.tokenizers.source)
        return LanguageModel.from_config(
            settings, vocab_size=vocab_size, rngs=rngs, make_layer=make
        )

    def training_batches(self) -> RandomWindows | ShuffledBatches[PackedBatch]:
        """Random windows of running text, or packed rows."""
        ids, batch, seed = self.ids("train"), self.config.batch, self.config.seed
        if self.source.is_running:
            size = batch.tokens // batch.row_length
            return RandomWindows(ids.ids, context=batch.row_length, size=size, seed=seed)
        return ShuffledBatches(ids, PackedRows([batch.row_length], batch.tokens), seed=seed)

    def batches(self, split: str) -> FixedWindows | SortedBatches[PackedBatch]:
        """As in `Task`."""
        ids, batch = self.ids(split), self.config.batch
        if self.source.is_running:
            size = min(EVALUATED_ROWS, -(-len(ids.ids) // batch.row_length))
            return FixedWindows(ids.ids, context=batch.row_length, size=size)
        return SortedBatches(ids, PackedRows([batch.row_length], batch.tokens))

    def _fitting(self, split: str) -> tuple[Examples, Ids]:
        examples, ids = super()._fitting(split)
        context = self.config.batch.row_length
        if self.source.is_running and len(ids.ids) <= context:
            raise UsageError(
                f"the {split} split has {len(ids.ids)} characters: batch.row_length={context} "
                f"needs at least {context + 1}"
            )
        if not self.source.is_running and (longest := ids.lengths.max()) > context:
            raise UsageError(
                f"the {split} split has an example of {longest} positions: raise "
                f"batch.row_length={context}"
            )
        return examples, ids

    def loss(
        self, model: LanguageModel, batch: TextBatch | PackedBatch, rng: Array | None
    ) -> tuple[TokenLosses, Mapping[str, Array]]:
        """As in `Task`."""
        mask = positions = lengths = None
        if self.config.model.experts is not None:  # which padding, also that of rows, must not use
            lengths = jnp.sum(batch.counted, axis=-1, dtype=jnp.int32)
        if isinstance(batch, PackedBatch):  # texts of a row do not attend to each other
            mask, positions = masks.segments(batch.segments), batch.positions
        output = model(
            batch.inputs,
            mask=mask,
            lengths=lengths,
            embedding_positions=positions,
            rng=rng,
            **self.on_mesh,
        )
        objective = self.objective(training=rng is not None)
        return objective(output.logits, batch.labels, batch.counted), output.losses

    @cached_property
    def writer(self) -> TextGenerator:
        """Continues a text, as `config.decoding` describes it."""
        return TextGenerator(
            self.learner.definition,
            self.tokenizers.source,
            self.config,
            begin=() if self.source.is_running else (BOS,),
        )

    def read(self, line: str) -> Sentence:
        """Read a prompt."""
        return self.writer.read(line)

    def answers(self, state: TrainState, inputs: Sequence[Sentence]) -> Iterable[Prediction]:
        """Continue each prompt."""
        return (self.writer.predict(state.parameters, prompt) for prompt in inputs)

    def example(self, state: TrainState, source: str, target: str | None = None) -> Example:
        """As in `Task`; if the target is None, the most probable tokens continue the text."""
        sentence = self.writer.read(source, max_tokens=0)
        ids = self.writer.ids(state.parameters, sentence, CONTINUED if target is None else 0)
        begin, labels = len(self.writer.begin), [*map(self.tokenizers.source.token, ids)]
        for place, word in sentence.unknown.items():
            labels[begin + place] = word
        return Example(
            {"decoder": np.array(ids)},
            {"decoder": labels},
            {"decoder": (begin, 0)},
            unknown={"decoder": [begin + place for place in sentence.unknown]},
            continuation=len(ids) - begin - len(sentence.ids),
        )

    def sample(self, state: TrainState) -> str:
        """Write a text from nothing, or from its first character."""
        prompt = self.tokenizers.source.token(0) if self.source.is_running else ""
        return "".join(islice(self.writer(state.parameters, self.writer.read(prompt)), SAMPLED))

"""Language modelling: a decoder predicts the next token of a text, and continues texts."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from attention.modules import LanguageModel, Output
from attention.primitives import masks
from experiments.analysis.collect import Example
from experiments.config.data import TextBatchPart
from experiments.config.model import DecoderModel, SamplingPart
from experiments.config.train import LabelTrainPart
from experiments.data.pairs import SentencePair
from experiments.data.rows import PackedBatch
from experiments.data.text import FixedWindows, RandomWindows, TextBatch
from experiments.data.vocabulary import BOS
from experiments.data.windows import Once, PackedRows, Windows
from experiments.errors import UsageError
from experiments.experts import make_layer
from experiments.inference.prediction import Prediction
from experiments.inference.sentence import Sentence
from experiments.inference.text_generator import TextGenerator
from experiments.losses import TokenLosses
from experiments.registry import TaskParts, task
from experiments.tasks.task import SHOWN, Examples, Ids, Task
from experiments.training.step import TrainState

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

    has_targets = False

    @property
    def reads_blank(self) -> bool:
        """Whether a text has a begin token, which the model continues."""
        return not self.source.is_running

    def model(self, rngs: nnx.Rngs) -> LanguageModel:
        """As in `Task`."""
        settings, experts = self.config.model, self.config.model.experts
        make = None if experts is None else partial(make_layer, settings, experts)
        vocab_size = len(self.tokenizers.source)
        return LanguageModel.from_config(
            settings, vocab_size=vocab_size, rngs=rngs, make_layer=make
        )

    def training_batches(self) -> RandomWindows | Windows[PackedBatch]:
        """Random windows of running text, or packed rows."""
        ids, batch, seed = self.ids("train"), self.config.batch, self.config.seed
        if self.source.is_running:
            size = batch.tokens // batch.row_length
            return RandomWindows(ids.ids, context=batch.row_length, size=size, seed=seed)
        return Windows(ids, PackedRows([batch.row_length], batch.tokens), seed=seed)

    def batches(self, split: str) -> FixedWindows | Once[PackedBatch]:
        """As in `Task`."""
        ids, batch = self.ids(split), self.config.batch
        if self.source.is_running:
            size = min(EVALUATED_ROWS, -(-len(ids.ids) // batch.row_length))
            return FixedWindows(ids.ids, context=batch.row_length, size=size)
        return Once(ids, PackedRows([batch.row_length], batch.tokens))

    def _fitting(self, split: str) -> tuple[Examples, Ids]:
        examples, ids = super()._fitting(split)
        context = self.config.batch.row_length
        if self.source.is_running and len(ids.ids) <= context:
            place = f" of {path}" if (path := self.config.data.path) else ""
            raise UsageError(
                f"the {split} split{place} has {len(ids.ids)} characters: batch.row_length="
                f"{context} needs at least {context + 1}"
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
            has_end=not self.source.is_running,
        )

    def read(self, line: str) -> tuple[str, Sentence]:
        """Read a prompt."""
        return line, self.writer.read(line)

    def answers(
        self, state: TrainState, inputs: Sequence[tuple[str, Sentence]]
    ) -> Iterable[Prediction]:
        """Continue each prompt."""
        return (self.writer.predict(state.parameters, *prompt) for prompt in inputs)

    def example(self, state: TrainState, source: str, target: str | None = None) -> Example:
        """As in `Task`; if the target is None, the most probable tokens continue the text."""
        sentence = self.writer.read(source, max_tokens=0)
        ids = self.writer.ids(state.parameters, sentence, CONTINUED if target is None else 0)
        labels = [self.tokenizers.source.token(number) for number in ids]
        for place, word in sentence.unknown.items():
            labels[len(self.writer.begin) + place] = word
        begin = len(self.writer.begin)
        return Example(
            {"decoder": np.array(ids)},
            {"decoder": labels},
            {"decoder": (begin, 0)},
            unknown={"decoder": [begin + place for place in sentence.unknown]},
            continuation=len(ids) - begin - len(sentence.ids),
        )

    def attended(
        self,
        model: LanguageModel,
        inputs: Mapping[str, Array],
        lengths: Mapping[str, Array],
        returning: Sequence[str] = (),
    ) -> Mapping[str, Output]:
        """As in `Task`: padding follows the tokens, so no token attends to it."""
        del lengths
        return {"decoder": model(inputs["decoder"], returning=returning)}

    def first_examples(self, split: str, number: int) -> list[SentencePair]:
        """As in `Task`; of running text, pieces of `SHOWN` tokens."""
        if not self.source.is_running:
            return super().first_examples(split, number)
        size = min(SHOWN, self.config.model.max_length)
        ids = self.ids(split).ids[: number * size]
        decode = self.tokenizers.source.decode
        pieces = (ids[start : start + size] for start in range(0, len(ids), size))
        return [SentencePair(decode(piece.tolist()), "") for piece in pieces]

    def sample(self, state: TrainState) -> str:
        """Write a text from nothing, or from its first character."""
        prompt = self.tokenizers.source.token(0) if self.source.is_running else ""
        return "".join(islice(self.writer(state.parameters, self.writer.read(prompt)), SAMPLED))

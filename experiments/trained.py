"""A trained run in Python: its model, tokenizers and config, and its answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from flax import nnx

from experiments.config import Config
from experiments.config.model import without_own_fields
from experiments.config.train import MeshPart
from experiments.data.tokenizers import Tokenizers
from experiments.inference.prediction import Prediction
from experiments.registry import TASKS
from experiments.sharding import one_copy
from experiments.training.session import restore
from experiments.training.step import TrainState
from experiments.workdir import Workdir


@dataclass(frozen=True)
class Run:
    """A trained run.

    Attributes:
        task: of the run.
        state: of the training, whose parameters are used.
    """

    task: Any
    state: TrainState

    @classmethod
    def load(cls, workdir: Workdir, cache: Path, config: Config | None = None) -> "Run":
        """Load a run.

        Args:
            workdir: of the run.
            cache: folder of generated data.
            config: with other decoding or another mesh than that of the run; by default that of the
                run, on all devices.

        Raises:
            UsageError: a folder without a trained model, or a damaged one.
        """
        if config is None:
            config = replace(Config.read(workdir.load_config().to_dict()), mesh=MeshPart())
        task = TASKS[config.task].load(config, workdir, cache)
        return cls(task, restore(workdir, task).state)

    @property
    def config(self) -> Config:
        """Config of the run."""
        return self.task.config

    @property
    def tokenizers(self) -> Tokenizers:
        """Tokenizers of source and target: `encode` adds neither begin nor end."""
        return self.task.tokenizers

    @cached_property
    def model(self) -> nnx.Module:
        """The trained model, such as an `attention.modules.EncoderDecoder`."""
        return nnx.merge(self.task.learner.definition, one_copy(self.state.parameters))

    def predict(self, lines: Sequence[str]) -> Iterator[Prediction]:
        """Yield the answer to each line as `--mode=predict`, with details and errors."""
        return self.task.predict(self.state, lines)

    def answer(self, lines: Sequence[str]) -> list[str]:
        """Return the answer to each line; of `task="translation"` the translation.

        Raises:
            ValueError: a line that the model cannot read.
        """
        answers = []
        for number, prediction in enumerate(self.predict(lines), start=1):
            if prediction.error:
                raise ValueError(f"line {number}: {prediction.error}")
            answers.append("".join(prediction.text))
        return answers

    translate = answer

    def save(self, folder: Path | str) -> None:
        """Save the model for `attention.weights.load`, which needs the extra `[weights]`.

        Raises:
            ValueError: a model that a `TransformerConfig` alone does not describe.
        """
        from attention.weights import save

        save(self.model, folder, config=without_own_fields(self.config.model))

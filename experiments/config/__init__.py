"""Configs as types: one frozen dataclass for each part, checked in its constructor."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from attention.modules import POSITIONS
from experiments.config.build import Part, as_tree, build, option
from experiments.config.parts import EncoderDecoderModel, MeshPart, SentenceBatchPart, TextPart
from experiments.errors import UsageError, as_usage_errors, one_of
from experiments.registry import EVALUATORS, TASKS, datasets_of


@dataclass(frozen=True, kw_only=True)
class Config(Part):
    """Everything that decides a run.

    Attributes:
        task: name, in `TASKS`.
        seed: of parameters, batches and dropout.
        architecture: name of the model, among those of the task.
        text: how data become subwords; None for data whose words are the tokens.
        decoding: how it writes; None if it writes nothing.
        literature: published scores by split, shown beside those of the run.
        plugin: the module or file of the user that was imported for this run.
    """

    task: str
    seed: int = option(0, within=f"[0, {2**32})")
    architecture: str = "transformer"
    data: Any
    text: TextPart | None = field(default=None, metadata={"part": True})
    batch: Any
    mesh: MeshPart = field(default_factory=MeshPart)
    model: Any
    train: Any
    decoding: Any = field(default=None, metadata={"part": True})
    literature: Mapping[str, Any] | None = field(default=None, metadata={"part": True})
    plugin: str | None = field(default=None, metadata={"part": True})

    def __post_init__(self) -> None:
        """Check what concerns several parts."""
        super().__post_init__()
        longest = getattr(self.model, "max_length", 0)
        self._check_batch(longest)
        if {*self.train.evaluators} - {*EVALUATORS} and not hasattr(self.decoding, "metrics"):
            raise ValueError(
                f"train.evaluators={self.train.evaluators} need texts, which {self.task} has not"
            )
        is_shared = self.text.joint if self.text else self.data.is_shared
        # An encoder-decoder alone reads both layers.
        is_pair = type(self.model) is EncoderDecoderModel
        if is_pair and self.model.tie == "all" and not is_shared:
            raise ValueError("model.tie='all' needs one vocabulary of both languages: use 'output'")
        if self.text and self.text.dropout and self.task != "translation":
            raise ValueError(f"text.dropout must be 0.0 for task={self.task!r}")
        positions = getattr(self.model, "positions", "none")
        tokens = getattr(self.decoding, "max_tokens", 0)
        if POSITIONS[positions].embed is not None and tokens >= longest:
            raise ValueError(
                f"decoding.max_tokens={tokens} must be less than model.max_length={longest}, "
                f"where {positions} positions end"
            )

    def _check_batch(self, longest: int) -> None:
        is_sentences = isinstance(self.batch, SentenceBatchPart)
        lengths = max(self.batch.bucket_lengths) if is_sentences else 0
        row_length = getattr(self.batch, "row_length", 0)
        for name, length in (("bucket_lengths", lengths), ("row_length", row_length)):
            if length > longest:
                raise ValueError(f"batch.{name}: {length} is more than model.max_length={longest}")
        row = longest if is_sentences else row_length
        if getattr(self.batch, "tokens", row) < row:
            raise ValueError(f"batch.tokens={self.batch.tokens} does not fit a row of {row}")
        if getattr(self.batch, "packed", False) and self.architecture == "recurrent":
            raise ValueError("batch.packed must be False for 'recurrent': only masks divide a row")

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> Self:
        """Build a config from nested mappings, as of a ConfigDict or a JSON file.

        Fields that are not there have their defaults, the first dataset that serves the task.

        Raises:
            UsageError: in one sentence.
        """
        task = tree.get("task")
        with as_usage_errors():
            parts, known = TASKS[task].parts, datasets_of(task)
            architecture = tree.get("architecture", next(iter(parts.models)))
            one_of("architecture", architecture, parts.models)
            name = tree.get("data", {}).get("name", next(iter(known), ""))
            one_of(f"data.name of task={task!r}", name, known)
        kinds = {
            "data": known[name].config,
            "text": TextPart if known[name].config.is_shared is None else None,
            "batch": parts.batch,
            "model": parts.models[architecture],
            "train": parts.train,
            "decoding": parts.decoding,
        }
        built = {}
        for part, kind in kinds.items():
            if kind is None and part in tree:
                raise UsageError(f"data.name={name!r} of task={task!r} has no part {part!r}")
            built[part] = build(kind, tree.get(part, {}), f"{part}.") if kind else None
        return build(cls, {**tree, "architecture": architecture, **built})

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as nested dictionaries."""
        return as_tree(self)

    def to_json(self, indent: int | None = None) -> str:
        """Return all fields as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

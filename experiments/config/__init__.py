"""Configs as types, checked in their constructors; the files that define them, and plugins."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from ml_collections import ConfigDict

from attention.modules import POSITIONS
from experiments.config.build import Part, as_tree, build, option
from experiments.config.parts import EncoderDecoderModel, MeshPart, SentenceBatchPart, TextPart
from experiments.errors import UsageError, as_usage_errors, nearest, one_of
from experiments.registry import EVALUATORS, TASKS, datasets_of

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = REPOSITORY / "configs"
DEFAULT = "toy_translation"  # configuration of a command without --config


@dataclass(frozen=True, kw_only=True)
class Config(Part):
    """Everything that decides a run.

    Attributes:
        task: what the model learns, such as translation.
        seed: of parameters, batches and dropout.
        architecture: kind of the model, such as "transformer" or "recurrent".
        text: how data become subwords; None for data whose words are the tokens.
        decoding: how the model writes text; None if it writes none.
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

        Missing fields have their defaults: of datasets, the first one that serves the task.

        Raises:
            UsageError: in one sentence.
        """
        task = tree.get("task")
        with as_usage_errors():
            parts, known = TASKS[task].parts, datasets_of(task)
            architecture = tree.get("architecture", next(iter(parts.models)))
            one_of("architecture", architecture, parts.models)
            data = tree.get("data", {})
            name = data.get("name") if isinstance(data, Mapping) else None
            name = next(iter(known), "") if name is None else name
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


def load_config(name: str) -> ConfigDict:
    """Load a configuration by its name, such as "toy_translation:tiny", or by the path of its file.

    Fields that the file of a task leaves out have their defaults.

    Raises:
        UsageError: there is no such file, it is no Python, or its `get_config` returns no config.
    """
    stem, *form = name.split(":", 1)
    is_name = "/" not in stem and not Path(stem).suffix
    paths = [CONFIGS / f"{stem}.py"] if is_name else [Path(stem), REPOSITORY / stem]
    path = paths[0] if paths[0].is_file() else paths[-1]
    if not path.is_file():
        known = map(str, Path(stem).parent.glob("*.py"))
        hint = nearest(stem, [path.stem for path in config_files()] if is_name else [*known])
        raise UsageError(f"there is no configuration {stem!r}{hint or '; --help lists all'}")
    try:
        module = import_file(path)
    except (SyntaxError, UnicodeDecodeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"the configuration {path} cannot be read: {reason}") from error
    config = module.get_config(*form) if hasattr(module, "get_config") else None
    if not isinstance(config, dict | ConfigDict):
        raise UsageError(f"{path} needs a function get_config that returns a ConfigDict or a dict")
    tree = ConfigDict(config).to_dict()
    return ConfigDict(Config.read(tree).to_dict() if tree.get("task") in TASKS else tree)


def config_files(folder: Path = CONFIGS) -> list[Path]:
    """List the files of a folder that define a configuration."""
    files = sorted(folder.glob("*.py"))
    return [path for path in files if b"\ndef get_config(" in path.read_bytes()]


def import_plugin(name: str) -> None:
    """Import a plugin, the path of a file or the dotted name of a module, once in this process.

    Raises:
        UsageError: it is missing. Errors of its code keep their traceback.
    """
    is_file = name.endswith(".py") or "/" in name
    sentence = f"--plugin={name} is not there: name a Python file or a module"
    if is_file and not Path(name).is_file():
        raise UsageError(sentence)
    try:
        import_file(Path(name)) if is_file else import_module(name)
    except ModuleNotFoundError as error:
        if is_file or not f"{name}.".startswith(f"{error.name}."):
            raise  # a module that the plugin needs
        raise UsageError(sentence) from error


def is_imported(name: str) -> bool:
    """Return whether this process has imported a plugin of that name, maybe in another folder."""
    return Path(name).name in {Path(key).name for key in sys.modules}


def import_file(path: Path) -> ModuleType:
    """Execute a Python file once in this process, and return its module."""
    key = str(path.resolve())
    if key not in sys.modules:
        loader = SourceFileLoader(key, key)
        module = module_from_spec(spec_from_loader(key, loader))
        sys.modules[key] = module  # where dataclasses find the types of their fields
        loader.exec_module(module)
    return sys.modules[key]

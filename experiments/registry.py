"""Objects by name, such as tasks and datasets; a plugin adds its own by the same decorators.

Built-in objects are imported when they are first looked up, so nothing heavy is imported here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar

from experiments.errors import one_of

Entry = TypeVar("Entry")


class Registry(Mapping[str, Entry], Generic[Entry]):
    """Objects by name; `@registry("name")` adds one."""

    def __init__(
        self, field: str, builtin: Mapping[str, str] | None = None, *, module: str = ""
    ) -> None:
        """Create a registry.

        Args:
            field: of a config that contains a name, for errors.
            builtin: "module:attribute" by name.
            module: the import of which adds built-in objects.
        """
        self._field = field
        self._module = module
        self._own: dict[str, Any] = dict(builtin or {})

    @property
    def _entries(self) -> dict[str, Any]:
        module, self._module = self._module, ""
        if module:
            import_module(module)
        return self._own

    def __call__(self, name: str) -> Callable[[Entry], Entry]:
        """Return a decorator that adds an object.

        Raises:
            ValueError: the name is taken.
        """
        if name in self._entries:
            raise ValueError(f"{self._field}={name!r} is registered already")

        def register(entry: Entry) -> Entry:
            self._entries[name] = entry
            return entry

        return register

    def __getitem__(self, name: str) -> Entry:
        """Return an object.

        Raises:
            ValueError: an unknown name; the known ones are listed.
        """
        one_of(self._field, name, tuple(self._entries))
        entry = self._entries[name]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = self._entries[name] = getattr(import_module(module), attribute)
        return entry

    def __contains__(self, name: object) -> bool:
        """Return whether there is an object of this name."""
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names; nothing is imported but the module of built-in objects."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._entries)


class Dataset(NamedTuple):
    """What a config needs to know of a dataset.

    Attributes:
        config: type of `config.data`.
        contains: kinds of its examples, such as "text"; it serves each task that reads one of them.
    """

    config: type
    contains: Sequence[str]


class TaskParts(NamedTuple):
    """Types of the parts of a config of a task.

    Attributes:
        reads: kinds of examples; each dataset that contains one of them serves the task.
        models: by `architecture`; the first is the default.
        batch: of its batches.
        train: of its training.
        decoding: how it writes; None if it writes nothing.
    """

    reads: Sequence[str]
    models: Mapping[str, type]
    batch: type
    train: type
    decoding: type | None = None


DATASETS: Registry[Dataset] = Registry("data.name", module="experiments.config.data")
SOURCES: Registry[Any] = Registry("data.name", module="experiments.config.data")
TASK_PARTS: Registry[TaskParts] = Registry("task", module="experiments.config")
TASKS: Registry[Any] = Registry("task", module="experiments.config")
LOSSES: Registry[Any] = Registry(
    "train.loss", {"cross_entropy": "experiments.losses:cross_entropy"}
)
METRICS: Registry[Any] = Registry(
    "decoding.metrics",
    {
        name: f"experiments.evaluation.scores:{name}"
        for name in ("exact_match", "bleu", "tok_bleu", "chrf")
    },
)
EVALUATORS: Registry[Any] = Registry("train.evaluators")


def datasets_of(task: str) -> dict[str, Dataset]:
    """Return the datasets that serve a task, the first of which is its default."""
    reads = {*TASK_PARTS[task].reads}
    return {name: each for name, each in DATASETS.items() if reads & {*each.contains}}


def dataset(*, source: Any, contains: Sequence[str]) -> Callable[[type], type]:  # noqa: ANN401 - a Source, which imports NumPy, or its name
    """Return a decorator of the config of a dataset, which registers it by its field `name`.

    Args:
        source: an `experiments.data.source.Source`, or "module:attribute" of one.
        contains: kinds of examples: "text" (the source is a text), "pairs" (so is the target),
            "classes" (the target is a class), "images" (the source is an image, the target a
            class), "characters" (parts of a running text); or a kind that a task of a plugin reads.

    Raises:
        ValueError: the name is taken.
    """

    def register(config: type) -> type:
        DATASETS(config.name)(Dataset(config, contains))
        SOURCES(config.name)(source)
        return config

    return register


def task(name: str, parts: TaskParts) -> Callable[[Entry], Entry]:
    """Return a decorator that registers a subclass of `Task` and the types of its config.

    Raises:
        ValueError: the name is taken.
    """
    TASK_PARTS(name)(parts)
    return TASKS(name)

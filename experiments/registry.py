"""Objects by name, such as tasks and datasets; a plugin adds its own by the same decorators."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from experiments.errors import one_of

Entry = TypeVar("Entry")


class Registry(dict[str, Entry]):
    """Objects by name; `@registry("name")` adds one."""

    def __init__(self, field: str) -> None:
        """Create an empty registry; `field` of a config contains a name, for errors."""
        super().__init__()
        self._field = field

    def __call__(self, name: str) -> Callable[[Entry], Entry]:
        """Return a decorator that adds an object.

        Raises:
            ValueError: the name is taken.
        """
        if name in self:
            raise ValueError(f"{self._field}={name!r} is registered already")
        return lambda entry: self.setdefault(name, entry)

    def __missing__(self, name: str) -> Entry:
        """Raise a ValueError that lists the known names."""
        one_of(self._field, name, tuple(self))


class Dataset(NamedTuple):
    """A registered dataset; see `dataset`."""

    config: type
    source: Any
    contains: Sequence[str]


class TaskParts(NamedTuple):
    """Types of the parts of a config of a task."""

    reads: Sequence[str]  # kinds of examples; a dataset that contains one of them serves the task
    models: Mapping[str, type]  # by `architecture`; the first is the default
    batch: type
    train: type
    decoding: type | None = None  # how it writes; None if it writes nothing


DATASETS: Registry[Dataset] = Registry("data.name")
TASKS: Registry[Any] = Registry("task")  # subclasses of `experiments.tasks.task.Task`
LOSSES: Registry[Any] = Registry("train.loss")
METRICS: Registry[Any] = Registry("decoding.metrics")
EVALUATORS: Registry[Any] = Registry("train.evaluators")


def datasets_of(task: str) -> dict[str, Dataset]:
    """Return the datasets that serve a task, the first of which is its default."""
    reads = {*TASKS[task].parts.reads}
    return {name: each for name, each in DATASETS.items() if reads & {*each.contains}}


def dataset(*, source: Any, contains: Sequence[str]) -> Callable[[type], type]:  # noqa: ANN401 - a Source, which imports this module
    """Return a decorator of the config of a dataset, which registers it by its field `name`.

    Args:
        source: an `experiments.data.source.Source`.
        contains: kinds of examples: "text" (the source is a text), "pairs" (so is the target),
            "classes" (the target is a class), "images" (the source is an image, the target a
            class), "characters" (parts of a running text); or a kind that a task of a plugin reads.

    Raises:
        ValueError: the name is taken.
    """

    def register(config: type) -> type:
        config.is_shared = source.text.shared
        DATASETS(config.name)(Dataset(config, source, contains))
        return config

    return register


def task(name: str, parts: TaskParts) -> Callable[[type], type]:
    """Return a decorator that registers a subclass of `Task` and the types of its config.

    Raises:
        ValueError: the name is taken.
    """

    def register(kind: type) -> type:
        kind.parts = parts
        return TASKS(name)(kind)

    return register

"""Objects by name, such as tasks; what is built in is imported when it is first looked up."""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

from experiments.errors import one_of

Entry = TypeVar("Entry")


class Registry(Mapping[str, Entry], Generic[Entry]):
    """Objects by name; `@registry("name")` adds one."""

    def __init__(self, field: str, builtin: Mapping[str, str]) -> None:
        """Create a registry.

        Args:
            field: of a config that contains a name, for errors.
            builtin: "module:attribute" by name.
        """
        self._field = field
        self._entries: dict[str, Any] = dict(builtin)

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
        """Iterate over the names; nothing is imported."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._entries)


TASKS = Registry(
    "experiment",
    {
        "translation": "experiments.tasks.translation:Translation",
        "language_model": "experiments.tasks.language_model:LanguageModeling",
        "masked_language_model": "experiments.tasks.masked_language_model:MaskedLanguageModeling",
        "classification": "experiments.tasks.classification:Classification",
        "word_vectors": "experiments.tasks.word_vectors:WordVectors",
    },
)
SOURCES = Registry(
    "data.name",
    {
        **{
            name: f"experiments.data.sequences.{name}:SOURCE"
            for name in ("toy", "reverse", "copy", "scan", "denoising", "summary", "parallel")
        },
        "tfds": "experiments.data.sequences.tfds:SOURCE",
        "characters": "experiments.data.sequences.characters:SOURCE",
        "sentiment": "experiments.data.sentiment:SOURCE",
        "digits": "experiments.data.digits:SOURCE",
    },
)
LOSSES = Registry("train.loss", {"cross_entropy": "experiments.training.loss:cross_entropy"})
METRICS = Registry(
    "decoding.metrics",
    {
        name: f"experiments.evaluation.scores:{name}"
        for name in ("exact_match", "bleu", "tok_bleu", "chrf")
    },
)
EVALUATORS = Registry("train.evaluators", {})

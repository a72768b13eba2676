"""Frozen dataclasses from trees of plain values, and back.

A part of a config is a frozen dataclass that checks its fields in its constructor. `build` makes it
from a mapping, as a ConfigDict or a JSON file contains it, and adds the path of the part to errors.
"""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from experiments.errors import UsageError, check_at_least

AnyPart = TypeVar("AnyPart")

KINDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "True or False",
    tuple: "a list",
    Mapping: "a mapping",
}


def option(default: Any, text: str = "", *, least: float | None = None) -> Any:  # noqa: ANN401 - any value
    """Return a field with a default value, one line of help, and the smallest value of a `Part`."""
    return dataclasses.field(default=default, metadata={"help": text, "least": least})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a config; its constructor checks the smallest values that `option` was given."""

    def __post_init__(self) -> None:
        """Check the fields."""
        for field in dataclasses.fields(self):
            if (least := field.metadata.get("least")) is not None:
                check_at_least(field.name, getattr(self, field.name), least)


def build(kind: type[AnyPart], tree: Mapping[str, Any], path: str = "", owner: str = "") -> AnyPart:
    """Build a part of a config.

    Args:
        kind: a dataclass whose constructor raises a ValueError that begins with a field name.
        tree: value of each field; a list is converted to a tuple and an int to a float.
        path: of the part, as "model.", for errors.
        owner: the choice that decided the kind, as "data.name='toy'", for errors.

    Raises:
        UsageError: an unknown or missing field, a value of another type or out of range.
    """
    if not isinstance(tree, Mapping):
        raise UsageError(f"{path[:-1]} must be {KINDS[Mapping]}, got {tree!r}")
    hints = get_type_hints(kind)
    fields = [field for field in dataclasses.fields(kind) if field.init]
    names = [field.name for field in fields]
    for name in tree:
        if name not in names:
            known = ", ".join(names)
            raise UsageError(f"{owner or 'the config'} has no field '{path}{name}', it has {known}")
    for field in fields:
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and field.name not in tree:
            raise UsageError(f"{owner or 'the config'} needs the field '{path}{field.name}'")
    values = {name: _converted(hints[name], value, f"{path}{name}") for name, value in tree.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise UsageError(f"{path}{error}") from error


def part_of(hint: Any) -> type | None:  # noqa: ANN401 - any type hint
    """Return the dataclass of a field that holds a part, or a part or None; else None."""
    kinds = [kind for kind in (hint, *get_args(hint)) if dataclasses.is_dataclass(kind)]
    return kinds[0] if kinds else None


def as_tree(part: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """Return the fields of a part as nested dictionaries; a part that is None is left out."""
    hints, tree = get_type_hints(type(part)), {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if dataclasses.is_dataclass(value):
            tree[field.name] = as_tree(value)
        elif value is not None or not (part_of(hints[field.name]) or field.metadata.get("part")):
            tree[field.name] = value
    return tree


def helps(part: Any, prefix: str = "") -> dict[str, str]:  # noqa: ANN401 - any dataclass
    """Return the help of each field of a part that has one, by its name, as "model.width"."""
    texts = {}
    for field in dataclasses.fields(part):
        name, value = f"{prefix}{field.name}", getattr(part, field.name)
        if dataclasses.is_dataclass(value):
            texts |= helps(value, f"{name}.")
        elif text := field.metadata.get("help"):
            texts[name] = text
    return texts


def _converted(hint: Any, value: Any, name: str) -> Any:  # noqa: ANN401 - any field
    if get_origin(hint) in (Union, types.UnionType):
        if value is None and type(None) in get_args(hint):
            return None
        hint = next(kind for kind in get_args(hint) if kind is not type(None))
    if hint is Any or isinstance(hint, TypeVar):
        return value
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else build(hint, value, f"{name}.")
    kind = get_origin(hint) or hint
    if kind is tuple and isinstance(value, list | tuple):
        return tuple(_converted(get_args(hint)[0], one, name) for one in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"{name} must be {KINDS[kind]}, got {value!r}")
    return value

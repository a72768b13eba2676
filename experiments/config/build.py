"""Frozen dataclasses from trees of plain values and back: dictionaries, JSON, and ConfigDict.

A part of a config is a frozen dataclass that checks its fields in its constructor, one of ours or
of the library. `build` makes it from a mapping and adds the path of the part to errors. The help of
a field is that of `option`, or its line in the "Attributes:" of the docstring.
"""

import ast
import dataclasses
import inspect
import math
import re
import types
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from reprlib import repr as brief
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ml_collections import ConfigDict

from attention.modules.numbers import check_number
from experiments.errors import UsageError, nearest, one_of

AnyPart = TypeVar("AnyPart")
AnyValue = Any  # in signatures of functions that take a value of any field

KINDS = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "True or False",
    tuple: "a list",
    Mapping: "a mapping",
}
MOST_LINES = 8  # of differences that are listed


def option(
    default: AnyValue,
    text: str = "",
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    among: Collection[str] = (),
) -> AnyValue:
    """Return a field of a `Part` with a default value, one line of help, and what it may be.

    Args:
        default: of the field; a float must be finite.
        text: the help.
        least: its smallest value.
        above: a number that it must exceed.
        below: a number that it must not reach, with `least`.
        among: names, of which it is one, or a tuple of some.
    """

    def check(name: str, value: AnyValue) -> None:
        if below is not None and not least <= value < below:
            raise ValueError(f"{name} must be in [{least}, {below}), got {value}")
        if least is not None or above is not None:
            check_number(name, value, at_least=least, above=above)
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")
        for each in (value if isinstance(value, tuple) else (value,)) if among else ():
            one_of(name, each, among)

    return dataclasses.field(default=default, metadata={"help": text, "check": check})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a config; its constructor checks what `option` allows."""

    def __post_init__(self) -> None:
        """Check the fields."""
        for field in dataclasses.fields(self):
            if check := field.metadata.get("check"):
                check(field.name, getattr(self, field.name))


def fields_of(kind: type) -> list[dataclasses.Field]:
    """Return the fields of a part that a config has: all but those that `kind.UNREAD` names."""
    unread = getattr(kind, "UNREAD", ())
    return [field for field in dataclasses.fields(kind) if field.name not in unread]


def build(kind: type[AnyPart], tree: Mapping[str, Any], path: str = "", owner: str = "") -> AnyPart:
    """Build a part of a config.

    Args:
        kind: a dataclass whose constructor raises a ValueError.
        tree: value of each field; a list is converted to a tuple and an int to a float.
        path: of the part, as "model.", for errors.
        owner: the choice that decided the kind, as "data.name='toy'", for errors.

    Raises:
        UsageError: an unknown or missing field, a value of another type or out of range.
    """
    if not isinstance(tree, Mapping):
        raise UsageError(f"{path[:-1]} must be {KINDS[Mapping]}, got {tree!r}")
    owner, hints = owner or "the config", get_type_hints(kind)
    fields = {field.name: field for field in fields_of(kind)}
    for name in tree:
        if name not in fields:
            hint = nearest(name, fields) or f", it has {', '.join(fields)}"
            raise UsageError(f"{owner} has no field '{path}{name}'{hint}")
    for name, field in fields.items():
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and name not in tree:
            raise UsageError(f"{owner} needs the field '{path}{name}'")
    values = {name: converted(hints[name], value, f"{path}{name}") for name, value in tree.items()}
    try:
        return kind(**values)
    except ValueError as error:
        # A sentence that begins with a field becomes one about its full name.
        sentence = str(error).removeprefix(f"{path.split('.')[-2]}." if path else "")
        field = re.match(r"(\w+)(\[|\.|=|:| must )", sentence)
        prefix = path if not path or (field and field[1] in fields) else f"{path[:-1]}: "
        raise UsageError(f"{prefix}{sentence}") from error


def converted(hint: AnyValue, value: AnyValue, name: str) -> AnyValue:
    """Return the value of a field as its type hint asks for; text, as of a flag, is read.

    Raises:
        UsageError: a value of another type.
    """
    kinds, is_optional = _kinds(hint)
    if isinstance(value, str) and not {str, Any} & {*kinds}:
        value = _literal(value)
    if is_optional and value in (None, "None"):
        return None
    for kind in kinds:
        if dataclasses.is_dataclass(kind):
            return value if isinstance(value, kind) else build(kind, value, f"{name}.")
        base = get_origin(kind) or kind
        if base in (tuple, Sequence) and isinstance(value, list | tuple):
            item, *_ = get_args(kind) or (Any,)
            return tuple(converted(item, element, name) for element in value)
        if base is float and isinstance(value, int | str) and not isinstance(value, bool):
            with suppress(ValueError):  # of text, where a field is a number or a word
                return float(value)
    known = [base for kind in kinds if (base := get_origin(kind) or kind) in KINDS]
    if not known or any(_has_type(value, base) for base in known):
        return value
    raise UsageError(f"{name} must be {KINDS[known[0]]}, got {value!r}")


def _has_type(value: AnyValue, kind: type) -> bool:
    # isinstance(True, int) holds.
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def _literal(text: str) -> AnyValue:
    try:
        return ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
    except (ValueError, SyntaxError):
        return text


def _kinds(hint: AnyValue) -> tuple[list[AnyValue], bool]:
    """Return the types of a hint without None, and whether None is one."""
    is_union = get_origin(hint) in (Union, types.UnionType)
    kinds = [kind for kind in (get_args(hint) if is_union else (hint,)) if kind is not type(None)]
    return kinds, hint is Any or type(None) in get_args(hint)


def as_tree(part: AnyValue) -> dict[str, Any]:
    """Return the fields of a part as nested dictionaries; a part that is None is left out."""
    tree = {}
    for field in fields_of(type(part)):
        value = getattr(part, field.name)
        if value is not None or not field.metadata.get("part"):
            tree[field.name] = as_tree(value) if dataclasses.is_dataclass(value) else value
    return tree


def as_config_dict(part: AnyValue) -> ConfigDict:
    """Return the fields of a part, or of a whole config, as a ConfigDict."""
    return ConfigDict(as_tree(part))


def helps(part: AnyValue, prefix: str = "") -> dict[str, str]:
    """Return the help of each field of a part that has one, by its name, as "model.width"."""
    texts = {}
    for kind in reversed(type(part).__mro__):
        _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
        for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
            texts[name] = " ".join(text.split()).removesuffix(".")
    found = {}
    for field in fields_of(type(part)):
        name, value = field.name, getattr(part, field.name)
        if dataclasses.is_dataclass(value):
            found |= helps(value, f"{prefix}{name}.")
        elif text := field.metadata.get("help") or texts.get(name):
            found[f"{prefix}{name}"] = text
    return found


def differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Return the dotted names of the fields in which two nested dictionaries differ."""
    there, here = flat(there), flat(here)
    return [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]


def is_within(name: str, parts: Collection[str]) -> bool:
    """Return whether a dotted name is one of `parts`, or a field of one: "data.path" of "data"."""
    return any(f"{name}.".startswith(f"{part}.") for part in parts)


def in_lines(names: Sequence[str], configs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one short line for each of the first eight fields, each after a line break.

    Args:
        names: the dotted names of the fields that differ.
        configs: both configurations, by the word that follows a value in the text.
    """
    lines = []
    for name in names[:MOST_LINES]:
        values = [f"{brief(flat(tree).get(name))} {where}" for where, tree in configs.items()]
        lines.append(f"\n  {name}: {', '.join(values)}")
    more = len(names) - MOST_LINES
    return "".join(lines) + (f"\n  and {more} more" if more > 0 else "")


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten `{"a": {"b": 1}}` to `{"a.b": 1}`, with lists for tuples as in JSON."""
    fields = {}
    for name, value in tree.items():
        if isinstance(value, dict | ConfigDict):
            fields |= flat(value, f"{prefix}{name}.")
        else:
            fields[prefix + name] = list(value) if isinstance(value, tuple) else value
    return fields

"""Frozen dataclasses from trees of plain values and back.

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
from functools import partial
from reprlib import repr as brief
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from flax.traverse_util import flatten_dict

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
flat = partial(flatten_dict, sep=".")  # {"a": {"b": 1}} to {"a.b": 1}


def option(
    default: AnyValue,
    text: str = "",
    *,
    least: float | None = None,
    above: float | None = None,
    within: str = "",
    among: Collection[str] = (),
) -> AnyValue:
    """Return a field of a `Part` with a default value, one line of help, and what it may be.

    Args:
        default: of the field; a float must be finite.
        text: the help.
        least: its smallest value.
        above: a number that it must exceed.
        within: its interval, as "[0, 1)".
        among: names, of which it is one, or a tuple of some.
    """

    def check(name: str, value: AnyValue) -> None:
        if within:
            low, high = map(float, within[1:-1].split(","))
            ends = {low: "[", high: "]"}
            if not low < value < high and ends.get(value, "none") not in within:
                raise ValueError(f"{name} must be in {within}, got {value}")
        elif least is not None or above is not None:
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


def build(kind: type[AnyPart], tree: Mapping[str, Any], path: str = "") -> AnyPart:
    """Build a part of a config from values of some fields, converted to the types of `kind`.

    Raises:
        UsageError: an unknown field, a value of another type or out of range, with the name of the
            field after `path`, as in "model.".
    """
    if not isinstance(tree, Mapping):
        raise UsageError(f"{path[:-1]} must be {KINDS[Mapping]}, got {tree!r}")
    hints, fields = get_type_hints(kind), [field.name for field in fields_of(kind)]
    for name in tree:
        if name not in fields:
            hint = nearest(name, fields) or f", it has {', '.join(fields)}"
            raise UsageError(f"the configuration has no field '{path}{name}'{hint}")
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
    """Return the value of a field as its type hint asks for, to the bottom of lists and parts.

    A list is converted to a tuple, an int to a float, and text, as of a flag, to what it spells.

    Raises:
        UsageError: a value of another type.
    """
    is_union = get_origin(hint) in (Union, types.UnionType)
    kinds = {kind: get_origin(kind) or kind for kind in (get_args(hint) if is_union else (hint,))}
    bases = [*kinds.values()]
    if isinstance(value, str) and str not in bases and Any not in bases:
        with suppress(ValueError, SyntaxError):  # of other text
            value = ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
    if value in (None, "None") and (types.NoneType in bases or Any in bases):
        return None
    for kind, base in kinds.items():
        if dataclasses.is_dataclass(kind):
            return value if isinstance(value, kind) else build(kind, value, f"{name}.")
        if base in (tuple, Sequence) and isinstance(value, list | tuple):
            item, *_ = get_args(kind) or (Any,)
            return tuple(converted(item, element, name) for element in value)
        if base is float and isinstance(value, int | str) and not isinstance(value, bool):
            with suppress(ValueError):  # of text, where a field is a number or a word
                return float(value)
    known = [base for base in bases if base in KINDS]
    for base in known:
        if isinstance(value, base) and isinstance(value, bool) == (base is bool):
            return value  # isinstance(True, int) holds
    if known:
        raise UsageError(f"{name} must be {KINDS[known[0]]}, got {value!r}")
    return value


def as_tree(part: AnyValue) -> dict[str, Any]:
    """Return the fields of a part as nested dictionaries; a part that is None is left out."""
    tree = {}
    for field in fields_of(type(part)):
        value = getattr(part, field.name)
        if value is not None or not field.metadata.get("part"):
            tree[field.name] = as_tree(value) if dataclasses.is_dataclass(value) else value
    return tree


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
    """Return a line for each of the first eight fields, with the values by the words after them."""
    lines = []
    for name in names[:MOST_LINES]:
        values = [f"{brief(flat(tree).get(name))} {where}" for where, tree in configs.items()]
        lines.append(f"\n  {name}: {', '.join(values)}")
    more = len(names) - len(lines)
    return "".join(lines) + (f"\n  and {more} more" if more else "")

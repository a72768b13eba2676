"""Differences between two configurations, as nested dictionaries."""

from collections.abc import Collection, Mapping, Sequence
from reprlib import repr as brief
from typing import Any

MOST_LINES = 8


def differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Return the dotted names of the fields in which two configurations differ."""
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


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten `{"a": {"b": 1}}` to `{"a.b": 1}`, with lists for tuples as in JSON."""
    fields = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            fields |= flat(value, f"{prefix}{name}.")
        else:
            fields[prefix + name] = list(value) if isinstance(value, tuple) else value
    return fields

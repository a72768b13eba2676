"""Flags and their values in a list of arguments, before they are parsed."""

import re
from collections.abc import Iterable, Sequence
from os.path import expanduser


def flag_name(argument: str) -> str:
    """Return the name of a flag: "config.seed" for "--config.seed=1", "" if it is no flag."""
    return argument.lstrip("-").split("=")[0] if argument.startswith("-") else ""


def without_negation(arguments: Iterable[str]) -> list[str]:
    """Replace `--noconfig.FIELD` by `--config.FIELD=False`."""
    return [re.sub(r"^--?no(config\.[^=]+)$", r"--\1=False", argument) for argument in arguments]


def with_home(arguments: Iterable[str]) -> list[str]:
    """Replace a `~` at the beginning of each value by the home folder, but not in a sentence."""
    split = (argument.partition("=") for argument in arguments)
    return [
        flag + equals + (value if flag_name(flag) in ("", "sentence") else expanduser(value))
        for flag, equals, value in split
    ]


def values_of(name: str, arguments: Sequence[str]) -> list[str]:
    """List the values of a flag, from `--name=value` or `--name value`; "" for a missing one."""
    following = ["" if argument.startswith("-") else argument for argument in [*arguments, ""][1:]]
    return [
        argument.partition("=")[2] if "=" in argument else after
        for argument, after in zip(arguments, following, strict=True)
        if flag_name(argument) == name
    ]


def last_of(name: str, arguments: Sequence[str]) -> str | None:
    """Return the last value of a flag, which is the one that counts."""
    return next(reversed(values_of(name, arguments)), None)


def without(names: Iterable[str], arguments: Sequence[str]) -> list[str]:
    """Return the arguments without some flags and their values."""
    names, kept, skip = {*names}, [], False
    for argument in arguments:
        name = flag_name(argument)
        if name not in names and (name or not skip):
            kept.append(argument)
        skip = name in names and "=" not in argument
    return kept

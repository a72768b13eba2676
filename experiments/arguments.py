"""What stands on a command line, read before it is known which flags there are.

The fields of a configuration are flags too, and which there are its file says.
"""

import re
from collections.abc import Iterable, Sequence


def flag_name(argument: str) -> str:
    """The name of a flag: "config.seed" of "--config.seed=1", "" of what is no flag."""
    return argument.lstrip("-").split("=")[0] if argument.startswith("-") else ""


def without_negation(arguments: Iterable[str]) -> list[str]:
    """With `--config.FIELD=False` for `--noconfig.FIELD`, which says the same."""
    return [re.sub(r"^--?no(config\.[^=]+)$", r"--\1=False", argument) for argument in arguments]


def values_of(name: str, arguments: Sequence[str]) -> list[str]:
    """What each flag of a name says, as `--name=value` or `--name value`; "" for nothing."""
    following = ["" if argument.startswith("-") else argument for argument in [*arguments, ""][1:]]
    return [
        argument.partition("=")[2] if "=" in argument else after
        for argument, after in zip(arguments, following, strict=True)
        if flag_name(argument) == name
    ]


def last_of(name: str, arguments: Sequence[str]) -> str | None:
    """What the last flag of a name says, which is what counts."""
    return next(reversed(values_of(name, arguments)), None)


def without(name: str, arguments: Sequence[str]) -> list[str]:
    """The arguments but for each flag of a name, and what it says."""
    kept, skip = [], False
    for argument in arguments:
        mine = flag_name(argument) == name
        if not mine and not skip:
            kept.append(argument)
        skip = mine and "=" not in argument
    return kept


def for_each_run(arguments: Sequence[str], runs: Iterable[str]) -> list[str]:
    """Turns what is said of `config.FIELD` into what is said of `config.runs.RUN.FIELD`."""
    told, rest = [], list(arguments)
    while rest:
        argument = rest.pop(0)
        field = flag_name(argument).removeprefix("config.")
        if not runs or field == flag_name(argument) or field.partition(".")[0] == "runs":
            told.append(argument)
            continue
        _, sign, value = argument.partition("=")
        if not sign and rest and not rest[0].startswith("-"):
            sign, value = "=", rest.pop(0)
        told += [f"--config.runs.{run}.{field}{sign}{value}" for run in runs]
    return told

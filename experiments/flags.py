"""Command-line flags, and one sentence for each way to get them wrong."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from experiments.errors import UsageError

MODES = ("train", "evaluate", "translate", "describe", "benchmark")
DEFAULT_CONFIG = "configs/toy_translation.py"
DEFAULT_BENCHMARK = "configs/benchmark.py"


class Command(NamedTuple):
    """What a person asked for.

    Attributes:
        mode: one of `MODES`.
        config: the configuration, overrides applied.
        config_given: whether they named a configuration or any field of one.
        workdir: the folder of the run.
        cache: the folder of what runs share: generated data and compiled programs.
    """

    mode: str
    config: ConfigDict
    config_given: bool
    workdir: Path
    cache: Path


def parse(argv: Sequence[str]) -> Command:
    """Reads the command line.

    Args:
        argv: the name of the program and its arguments.

    Raises:
        UsageError: an unknown flag, file or field, or a value of the wrong type.
    """
    program, *arguments = argv
    config_given = any(_name(argument).split(".")[0] == "config" for argument in arguments)
    if _value("config", arguments) is None:
        benchmark = _value("mode", arguments) == "benchmark"
        arguments = [f"--config={DEFAULT_BENCHMARK if benchmark else DEFAULT_CONFIG}", *arguments]
    _check_config(program, arguments)
    values = _read([program, *arguments])
    if values.help:
        print(values.get_help())
        raise SystemExit(0)
    file, _, form = config_flags.get_config_filename(values["config"]).partition(":")
    default_workdir = Path("workdirs", Path(file).stem + (f"_{form}" if form else ""))
    return Command(
        mode=values.mode,
        config=values.config,
        config_given=config_given,
        workdir=Path(values.workdir or default_workdir),
        cache=Path(values.cache),
    )


def _name(argument: str) -> str:
    """The name of a flag: "config.seed" of "--config.seed=1", "" of what is no flag."""
    return argument.lstrip("-").split("=")[0] if argument.startswith("-") else ""


def _value(name: str, arguments: Sequence[str]) -> str | None:
    """What the last flag of a name says, as `--name=value` or `--name value`."""
    places = [place for place, argument in enumerate(arguments) if _name(argument) == name]
    if not places:
        return None
    value = arguments[places[-1]].partition("=")[2]
    return value or "".join(arguments[places[-1] + 1 : places[-1] + 2])


def _read(argv: Sequence[str]) -> flags.FlagValues:
    values = flags.FlagValues()
    flags.DEFINE_enum("mode", "train", MODES, "What to do.", flag_values=values)
    flags.DEFINE_string(
        "workdir", None, "Folder of the run; workdirs/CONFIG by default.", flag_values=values
    )
    flags.DEFINE_string(
        "cache", ".cache", "Folder of generated data and compiled programs.", flag_values=values
    )
    flags.DEFINE_bool("help", False, "Show this help.", short_name="h", flag_values=values)
    config_flags.DEFINE_config_file(
        "config",
        help_string="Configuration file, with a form after a colon: configs/NAME.py:tiny. Any "
        "field of it is a flag of its own: --config.model.width=64.",
        flag_values=values,
        sys_argv=list(argv),
    )
    try:
        rest = values(argv)
        _ = values.config  # configurations load when they are looked at
    except flags.UnrecognizedFlagError as error:
        near = get_close_matches(error.flagname, list(values), n=1)
        hint = f"; did you mean --{near[0]}?" if near else ""
        raise UsageError(f"unknown flag --{error.flagname}{hint}") from error
    except (flags.Error, ValueError, TypeError) as error:
        raise UsageError(_first_cause(error)) from error
    except (SyntaxError, ImportError, AttributeError, OSError) as error:
        raise UsageError(f"the configuration cannot be read: {_first_cause(error)}") from error
    if len(rest) > 1:
        raise UsageError(f"unexpected argument {rest[1]!r}: arguments are flags, --name=value")
    return values


def _first_cause(error: BaseException) -> str:
    """What was wrong to begin with; the flag libraries wrap the errors of a configuration file."""
    while (cause := error.__cause__ or error.__context__) is not None and not isinstance(
        error, flags.Error
    ):
        error = cause
    text = str(error).strip()
    if "Traceback" in text:  # ml_collections quotes one, which ends in what was wrong
        text = text.splitlines()[-1].partition(": ")[2]
    return text.replace("\n", " ")


def _check_config(program: str, arguments: Sequence[str]) -> None:
    """Looks for the file and for every field that is overridden, where names can be mistaken."""
    path = _value("config", arguments)
    file = Path(path.partition(":")[0])
    if not file.is_file():
        known = [str(known) for known in file.parent.glob("*.py")]
        near = get_close_matches(str(file), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"there is no configuration {str(file)!r}{hint}")
    config = _read([program, f"--config={path}"]).config
    for argument in arguments:
        if _name(argument).startswith("config."):
            _check_field(_name(argument), config)


def _check_field(name: str, config: ConfigDict) -> None:
    parent = config
    for field in name.split(".")[1:]:
        if not isinstance(parent, ConfigDict) or field not in parent:
            fields = [known.removeprefix("config.") for known in _fields(config, "config")]
            wanted = name.removeprefix("config.")
            last = {known.split(".")[-1]: known for known in fields}
            near = get_close_matches(wanted, fields, n=1) or [
                last[known] for known in get_close_matches(wanted.split(".")[-1], list(last), n=1)
            ]
            hint = f"; did you mean --config.{near[0]}?" if near else ""
            raise UsageError(f"the configuration has no field {wanted!r}{hint}")
        parent = parent[field]


def _fields(config: ConfigDict, prefix: str) -> list[str]:
    names = []
    for name, value in config.items():
        names += (
            _fields(value, f"{prefix}.{name}")
            if isinstance(value, ConfigDict)
            else [f"{prefix}.{name}"]
        )
    return names

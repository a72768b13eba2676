"""Command-line flags, and one sentence for each way to get them wrong."""

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags
from ml_collections.config_flags.config_flags import UnsupportedOperationError

from experiments.arguments import (
    flag_name,
    for_each_run,
    last_of,
    values_of,
    without,
    without_negation,
)
from experiments.errors import UsageError
from experiments.workdir import Workdir

MODES = ("train", "evaluate", "translate", "generate", "compare", "describe", "benchmark", "ledger")
USES = ("evaluate", "translate", "generate")  # what is done with a trained model
DEFAULTS = {"benchmark": "configs/benchmark.py", "ledger": "configs/ledger.py"}
DEFAULT = "configs/toy_translation.py"
PRETRAINED = "configs/pretrained.py"


class Command(NamedTuple):
    """What a person asked for.

    Attributes:
        mode: one of `MODES`.
        config: the configuration, overrides applied.
        workdir: the folder of the run.
        cache: the folder of what runs share: generated data and compiled programs.
        split: what alone is evaluated, if not all that tests.
        against: the folder of a run that another is held against as it is evaluated.
        is_of_run: whether the configuration is that of the run in the workdir.
        weights: the folder of a checkpoint that generates text in place of a run.
    """

    mode: str
    config: ConfigDict
    workdir: Path
    cache: Path
    split: str | None = None
    against: Path | None = None
    is_of_run: bool = False
    weights: Path | None = None


def parse(argv: Sequence[str]) -> Command:
    """Reads the command line.

    A trained model is used as its run configured it, where no file is named, and so is the run of
    a `--workdir` described. To compare several files, `--config` is given several times; overrides
    hold for each, as for each run of a file of runs.

    Args:
        argv: the name of the program and its arguments.

    Raises:
        UsageError: an unknown flag, file or field, or a value of the wrong type.
    """
    program, *arguments = argv
    arguments = without_negation(arguments)
    for name in ("config", "workdir", "against", "cache", "mode", "split", "weights"):
        if "" in values_of(name, arguments):
            raise UsageError(f"--{name} needs a name, got none")
    mode, files = last_of("mode", arguments), values_of("config", arguments)
    if mode == "compare" and len(files) > 1:
        rest = without("config", arguments)
        commands = [parse([program, f"--config={file}", *rest]) for file in files]
        return _together(commands, files, given=last_of("workdir", arguments))
    if len(files) > 1:
        raise UsageError("--config is given more than once, which only --mode=compare understands")
    weights = last_of("weights", arguments)
    default = DEFAULTS.get(mode, DEFAULT) if weights is None else PRETRAINED
    file = files[-1] if files else default
    named = last_of("workdir", arguments)
    is_of_run = (
        not files
        and weights is None
        and (mode in USES or (mode == "describe" and named is not None))
    )
    if is_of_run:
        base = Workdir(named or _default_workdir(default)).load_config()
        define = partial(config_flags.DEFINE_config_dict, "config", base)
    else:
        # Overrides are only understood behind the file.
        arguments = [f"--config={file}", *without("config", arguments)]
        define = partial(config_flags.DEFINE_config_file, "config")
        base = _base(program, file, define)
        arguments = for_each_run(arguments, base.get("runs", {}))
    for argument in arguments:
        if flag_name(argument).startswith("config."):
            _check_field(flag_name(argument), base)
    values = _read([program, *arguments], define)
    if values.help:
        print(values.get_help())
        raise SystemExit(0)
    for name in ("split", "against"):
        if values[name].value is not None and values.mode != "evaluate":
            raise UsageError(f"--{name} is for --mode=evaluate alone, got --mode={values.mode}")
    if weights is not None and (values.mode != "generate" or values.workdir is not None):
        raise UsageError("--weights is for --mode=generate alone, without a --workdir")
    if values.mode == "ledger" and values.workdir is not None:
        raise UsageError(
            "--mode=ledger tells of all runs below --config.folder: it has no --workdir"
        )
    if values.mode == "describe" and values.workdir is not None and files:
        raise UsageError("what is described is a --config or the run of a --workdir, got both")
    return Command(
        mode=values.mode,
        config=values.config,
        workdir=Path(values.workdir or _default_workdir(file)),
        cache=Path(values.cache),
        split=values.split,
        against=None if values.against is None else Path(values.against),
        is_of_run=is_of_run,
        weights=None if weights is None else Path(weights),
    )


def _together(commands: Sequence[Command], files: Sequence[str], given: str | None) -> Command:
    """Several runs as the one configuration that compares them."""
    names = [_default_workdir(file).name for file in files]
    if len({*names}) < len(names):
        raise UsageError(f"a comparison needs configurations that differ, got {', '.join(files)}")
    runs = {name: command.config for name, command in zip(names, commands, strict=True)}
    workdir = Path(given) if given else Path("workdirs", "+".join(names))
    config = ConfigDict({"experiment": "comparison", "runs": runs})
    return commands[0]._replace(config=config, workdir=workdir)


def _default_workdir(file: str) -> Path:
    """configs/NAME.py:tiny runs in workdirs/NAME_tiny."""
    path, _, form = file.partition(":")
    return Path("workdirs", Path(path).stem + (f"_{form}" if form else ""))


def _read(argv: Sequence[str], define: Callable[..., object]) -> flags.FlagValues:
    """Reads flags, those of a configuration as `define` makes them."""
    values = flags.FlagValues()
    flags.DEFINE_enum("mode", "train", MODES, "What to do.", flag_values=values)
    flags.DEFINE_string(
        "workdir", None, "Folder of the run; workdirs/CONFIG by default.", flag_values=values
    )
    flags.DEFINE_string(
        "cache", ".cache", "Folder of generated data and compiled programs.", flag_values=values
    )
    flags.DEFINE_string(
        "split",
        None,
        "With --mode=evaluate, the part of the data that is measured; all that tests by default.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "against",
        None,
        "With --mode=evaluate, the folder of another run that was measured on the same sentences: "
        "whether its BLEU differs from this one by more than chance (paired bootstrap).",
        flag_values=values,
    )
    flags.DEFINE_string(
        "weights",
        None,
        "With --mode=generate, a folder with a released checkpoint (config.json, safetensors and "
        "tokenizer.json), in place of a run.",
        flag_values=values,
    )
    flags.DEFINE_bool("help", False, "Show this help.", short_name="h", flag_values=values)
    try:
        define(
            help_string="Configuration file, with a form after a colon: configs/NAME.py:tiny. Any "
            "field of it is a flag of its own: --config.model.width=64. Given several times, with "
            "--mode=compare.",
            flag_values=values,
            sys_argv=list(argv),
        )
        rest = values(argv)
        _ = values.config  # configurations load when they are looked at
    except flags.UnrecognizedFlagError as error:
        near = get_close_matches(error.flagname, list(values), n=1)
        hint = f"; did you mean --{near[0]}?" if near else ""
        raise UsageError(f"unknown flag --{error.flagname}{hint}") from error
    except UnsupportedOperationError as error:  # of a run, read from JSON
        field = re.search(r"config\.[\w.]+", str(error))
        raise UsageError(
            f"{field[0] if field else 'a field'} is None in the run of the workdir, and takes a "
            "value only where --config names the file of the configuration"
        ) from error
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


def _base(program: str, given: str, define: Callable[..., object]) -> ConfigDict:
    """The configuration of a file, before any override; here names of files can be mistaken."""
    file = Path(given.partition(":")[0])
    if not file.is_file():
        known = [str(known) for known in file.parent.glob("*.py")]
        near = get_close_matches(str(file), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"there is no configuration {str(file)!r}{hint}")
    return _read([program, f"--config={given}"], define).config


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

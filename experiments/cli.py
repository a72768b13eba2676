"""Command line: modes, flags, help, and one sentence for each mistake.

Nothing heavy is imported here: a typing error and `--help` are answered before jax and NumPy load.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from experiments.arguments import (
    flag_name,
    last_of,
    values_of,
    with_home,
    without,
    without_negation,
)
from experiments.config import Config
from experiments.config.build import helps
from experiments.config_files import (
    DEFAULT,
    check_field,
    choose_data,
    config_files,
    fields_of,
    load_config,
    wrong_value,
)
from experiments.errors import UsageError, as_usage_errors, nearest, one_of
from experiments.grid import axis_flags, expand, read_axes
from experiments.plugin import import_plugin
from experiments.registry import TASKS, datasets_of
from experiments.workdir import CHANGEABLE, MESH, Workdir

MODES = {
    "train": "train a model or continue its run, then measure it; the default",
    "evaluate": "measure a trained model again",
    "predict": "answer each line of standard input: translate it, continue it, name its class, …",
    "explain": "draw and measure what a trained model attends to",
    "sweep": "train with several seeds or values of fields: mean and standard deviation",
    "prepare": "store the data of a configuration in the cache, as the first training does",
    "describe": "count parameters, cache and FLOPs of a model, plan its training, draw its masks",
    "benchmark": "measure time, memory and error of attention beside other libraries",
    "ledger": "write the results of all runs in workdirs/ as JSON and into the documents",
}
ANSWERS = ("generate", "translate")  # other names of the mode predict, which get a hint
USES = ("evaluate", "predict", "explain")  # modes that need a trained model
MAX_PORT = 65_535
MULTI_PROCESS_MODES = ("train", "evaluate")  # modes in which several processes compute one run
PROCESS_FLAGS = ("coordinator", "num_processes", "process_id")  # flags of several processes
OF_DATA = ("split", "file", "gold", "gold_first")  # flags that need the data or the tokens of a run
# Modes that train several runs: how the names of their workdirs end.
SUFFIXES = {"sweep": "_sweep"}
DEFAULTS = {"benchmark": "benchmark", "ledger": "ledger"}
PRETRAINED = "pretrained"
HELP = ("--help", "-help", "-h")


class Flag(NamedTuple):
    """A flag of the command line.

    Attributes:
        help: one line, without the modes.
        modes: that have it; () for all.
        read: converts its text to a value.
        default: its text if it is not given.
        known: allowed texts; () for any.
        least: smallest value of a whole number.
    """

    help: str
    modes: tuple[str, ...] = ()
    read: Callable[[str], Any] = str
    default: str | None = None
    known: tuple[str, ...] = ()
    least: int = 1

    @property
    def description(self) -> str:
        """The modes, the help and the default."""
        where = f"with --mode={' or '.join(self.modes)}: " if self.modes else ""
        return f"{where}{self.help}" + (f" [{self.default}]" if self.default else "")


FLAGS = {
    "mode": Flag("one of the modes above", default="train"),
    "workdir": Flag("folder of the run; alone, it continues or uses the run that it contains"),
    "cache": Flag("folder of generated data and compiled programs", (), Path, ".cache"),
    "split": Flag("the one split that is used", ("evaluate", "explain")),
    "against": Flag(
        "another workdir, to compare BLEU with (paired bootstrap)", ("evaluate",), Workdir
    ),
    "wandb": Flag("Weights & Biases project that takes the metrics too", ("train", "sweep")),
    "weights": Flag("folder of a released checkpoint, in place of a run", ("predict",), Path),
    "sentence": Flag("a sentence, in place of those of a split", ("explain",)),
    "file": Flag(
        "a file of sentences, one a line, or of pairs with a tab between", ("explain",), Path
    ),
    "gold": Flag(
        "word alignments of the pairs of --file, one line for each, as 0-0 1-2 2p1",
        ("explain",),
        Path,
    ),
    "gold_first": Flag(
        "number of the first word in --gold, 0 (the default) or 1",
        ("explain",),
        int,
        known=("0", "1"),
    ),
    "format": Flag(
        "text, or json with probabilities and alignments", ("predict",), known=("text", "json")
    ),
    "seeds": Flag("the seeds of the runs, as in 0,1,2", ("sweep",)),
    "beam": Flag("options of Apache Beam, as in --runner=DirectRunner", ("prepare",)),
    "coordinator": Flag(
        "HOST:PORT, where process 0 of several listens; not needed by SLURM and Open MPI",
        MULTI_PROCESS_MODES,
    ),
    "num_processes": Flag(
        "with --coordinator: the number of processes; 1 for one process alone",
        MULTI_PROCESS_MODES,
        int,
    ),
    "process_id": Flag(
        "with --coordinator: the number of this process, from 0", MULTI_PROCESS_MODES, int, least=0
    ),
    "profile": Flag(
        "record a trace of some steps in the folder profile of the workdir", ("train",), bool
    ),
    "plugin": Flag("Python file or module that registers datasets, tasks and the like"),
}


class Command(NamedTuple):
    """A parsed command line.

    Attributes:
        mode: one of `MODES`.
        config: the configuration, overrides applied.
        workdir: folder of the run.
        cache: folder of generated data and compiled programs, shared by runs.
        weights: folder of a released checkpoint that is used in place of a run.
        is_of_run: whether the configuration was read from the workdir.
        runs: the configurations of several runs by name; `config` is the first one.
        options: values of the other flags of the mode that were given.
    """

    mode: str
    config: ConfigDict
    workdir: Path
    cache: Path
    weights: Path | None = None
    is_of_run: bool = False
    runs: Mapping[str, ConfigDict] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})


def parse(argv: Sequence[str]) -> Command:
    """Parse the command line.

    Without `--config`, the configuration is that of the run in `--workdir`, if it contains one.
    Overrides hold for each run of a sweep.

    Args:
        argv: the name of the program and its arguments.

    Raises:
        UsageError: an unknown flag, mode, configuration or field, or a value of the wrong type.
        SystemExit: `--help`, after the help is printed.
    """
    program, *arguments = argv
    arguments = with_home(without_negation(arguments))
    for name in ("config", *FLAGS):
        if name not in ("seeds", "profile") and "" in values_of(name, arguments):
            what = "a sentence" if name == "sentence" else "a name"
            raise UsageError(f"--{name} needs {what}, got none")
    mode, configs = last_of("mode", arguments) or "train", values_of("config", arguments)
    if mode in ANSWERS:
        raise UsageError(f"--mode={mode} is --mode=predict here, for trained runs and --weights")
    with as_usage_errors():
        one_of("--mode", mode, tuple(MODES))
    if plugin := last_of("plugin", arguments):
        import_plugin(plugin)
    if any(flag in arguments for flag in HELP):
        print(help_text(program, configs), flush=True)
        raise SystemExit(0)
    _check_combination(mode, arguments, is_config_given=bool(configs))
    if mode in SUFFIXES:
        return _parse_several(mode, [program, *arguments], configs)
    if len(configs) > 1:
        raise UsageError(
            f"--config is given more than once: only --mode={' and --mode='.join(SUFFIXES)} take "
            "several"
        )
    return _parse_one(mode, [program, *without(["config"], arguments)], *configs)


def _parse_one(mode: str, argv: Sequence[str], name: str | None = None) -> Command:
    """Parse the flags for the configuration of a name; None for that of the run in the workdir."""
    program, *arguments = argv
    place, weights = last_of("workdir", arguments), last_of("weights", arguments)
    config = name or (PRETRAINED if weights else DEFAULTS.get(mode, DEFAULT))
    workdir = Workdir(place or _default_workdir(config))
    is_of_run = not name and not weights
    if mode not in USES:
        contains_run = mode == "describe" or workdir.config.exists()
        is_of_run = is_of_run and place is not None and contains_run
    base = workdir.load_config() if is_of_run else load_config(config)
    if base.task in TASKS:
        plugin = last_of("plugin", arguments)
        base.update({"plugin": plugin} if plugin else {})
        choose_data(base, last_of("config.data.name", arguments))
    for argument in arguments:
        if flag_name(argument).startswith("config."):
            check_field(flag_name(argument), base)
    values = _read([program, *arguments], base)
    if mode in USES and not weights and workdir.config.exists():
        _check_training(mode, arguments, values.config, workdir)
    read = _values({name: values[name].value for name in FLAGS})
    cache, weights = read["cache"], read.pop("weights", None)
    options = {name: value for name, value in read.items() if FLAGS[name].modes}
    return Command(mode, values.config, workdir.path, cache, weights, is_of_run, options=options)


def _check_training(
    mode: str, arguments: Sequence[str], config: ConfigDict, workdir: Workdir
) -> None:
    """Raise a `UsageError` for a flag that changes the training of a run that is only used."""
    given, trained = {*map(flag_name, arguments)}, workdir.load_config()
    for name in CHANGEABLE:
        part, _, field = name.partition(".")
        if name not in MESH and f"config.{name}" in given and part in trained:
            new, old = (getattr(tree[part], field, None) for tree in (config, trained))
            if new != old:
                raise UsageError(
                    f"--config.{name}={new} is for training: --mode={mode} uses the run of "
                    f"{workdir.path} as it was trained, with {old!r}"
                )


def _parse_several(mode: str, argv: Sequence[str], names: Sequence[str]) -> Command:
    """Parse the flags for each run of a sweep.

    Without configurations and fields that vary, the runs are those in the folder `--workdir`.
    """
    axes, rest = read_axes(argv), without(["config", *axis_flags(argv)], argv)
    place = last_of("workdir", argv)
    if place and not names and not axes:
        folders = sorted(path.parent for path in Path(place).glob("*/config.json"))
        if not folders:
            raise UsageError(f"{place} contains no runs: name a --config")
        commands = [_parse_one(mode, [*rest, f"--workdir={folder}"]) for folder in folders]
        runs = {folder.name: one.config for folder, one in zip(folders, commands, strict=True)}
        return commands[0]._replace(workdir=Path(place), runs=runs)
    configs = {_default_workdir(name).name: name for name in names or [DEFAULT]}
    if len(configs) < len(names):
        raise UsageError(f"--mode={mode} needs configurations that differ, got {', '.join(names)}")
    commands: list[Command] = []

    def load(name: str, flags: list[str]) -> ConfigDict:
        commands.append(_parse_one(mode, [*rest, *with_home(flags)], name))
        return commands[-1].config

    runs = expand(load, configs, axes)
    if len(runs) < 2 and not axes:
        raise UsageError("--mode=sweep needs --seeds=0,1,2 or --grid.FIELD=VALUE,VALUE")
    workdir = Path(place or Path("workdirs", "+".join(configs) + SUFFIXES[mode]))
    return commands[0]._replace(workdir=workdir, runs=runs)


def help_text(program: str, configs: Sequence[str] = ()) -> str:
    """Return the help: modes, configurations and flags, and the fields of the named configurations.

    Raises:
        UsageError: a configuration that cannot be loaded.
    """
    cards = {
        path.stem: (ast.get_docstring(ast.parse(path.read_bytes())) or "").partition("\n")[0]
        for path in config_files()
    }
    values = {name: flag.description for name, flag in FLAGS.items()}
    values["config"] = f"a configuration below, NAME:tiny for its tiny form, or a path [{DEFAULT}]"
    values["config.FIELD"] = "a value for a field; --help --config=CONFIG lists the fields"
    values["grid.FIELD"] = "with --mode=sweep: values of a field, as in 1e-3,3e-3"
    parts = [
        f"usage: python {program} [--mode=MODE] [--config=CONFIG] [--config.FIELD=VALUE] …",
        _section("modes", MODES),
        _section("configurations", cards),
        _section("flags", {f"--{name}": text for name, text in values.items()}),
    ]
    for config in configs:
        loaded = load_config(config)
        texts = {}
        if loaded.task in TASKS:
            texts = helps(Config.read(loaded.to_dict()))
            texts["data.name"] = f"one of {', '.join(datasets_of(loaded.task))}"
        fields = {
            f"--config.{name}": f"{value!r}  {texts.get(name, '')}".rstrip()
            for name, value in fields_of(loaded)
        }
        parts.append(_section(f"fields of {config}", fields))
    return "\n\n".join(parts)


def _section(title: str, rows: dict[str, str]) -> str:
    width = max(map(len, rows))
    return "\n".join([f"{title}:", *(f"  {name:{width}}  {text}" for name, text in rows.items())])


def _check_combination(mode: str, arguments: Sequence[str], *, is_config_given: bool) -> None:
    """Raise a `UsageError` for flags that exclude each other."""
    given = {name: last_of(name, arguments) for name in FLAGS}
    for name, flag in FLAGS.items():
        if given[name] is not None and flag.modes and mode not in flag.modes:
            known = " and --mode=".join(flag.modes)
            raise UsageError(f"--{name} is for --mode={known} alone, got --mode={mode}")
    for name in axis_flags(arguments):
        if mode not in SUFFIXES:
            modes = " and ".join(f"--mode={one}" for one in SUFFIXES)
            raise UsageError(f"--{name} is for {modes}, got --mode={mode}")
    _check_processes(_values(given))
    if given["weights"] and given["workdir"] and mode == "predict":
        raise UsageError("--weights with --mode=predict names the model: it takes no --workdir")
    if given["weights"] and (name := next((x for x in OF_DATA if given[x]), "")):
        raise UsageError(f"--{name} is for a run: --weights has no data, and takes a --sentence")
    if given["gold"] and not given["file"]:
        raise UsageError("--gold is for the pairs of a --file")
    if mode == "ledger" and given["workdir"]:
        raise UsageError("--mode=ledger lists all runs below --config.folder: it has no --workdir")
    if mode == "describe" and given["workdir"] and is_config_given:
        raise UsageError("--mode=describe takes a --config or a --workdir, got both")


def _check_processes(given: Mapping[str, Any]) -> None:
    """Raise a `UsageError` for flags of several processes that are incomplete or wrong."""
    missing = [f"--{name}" for name in PROCESS_FLAGS if name not in given]
    if len(missing) == 3 or (len(missing) == 2 and given.get("num_processes") == 1):
        return
    if missing:
        flags = ", ".join(f"--{name}" for name in PROCESS_FLAGS)
        raise UsageError(f"{flags} belong together: {' and '.join(missing)} missing")
    host, _, port = given["coordinator"].rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= MAX_PORT:
        raise UsageError(
            f"--coordinator is HOST:PORT with a port from 1 to {MAX_PORT}, got "
            f"{given['coordinator']!r}"
        )
    number, process = given["num_processes"], given["process_id"]
    if process >= number:
        raise UsageError(
            f"--process_id is from 0 to {number - 1} with --num_processes={number}, got {process}"
        )


def _values(given: Mapping[str, str | bool | None]) -> dict[str, Any]:
    """Return the values of the flags that were given; raise a `UsageError` for wrong ones."""
    values = {}
    for name, text in given.items():
        if not text:
            continue
        flag = FLAGS[name]
        if flag.known:
            with as_usage_errors():
                one_of(f"--{name}", text, flag.known)
        elif flag.read is int and not (text.isdecimal() and int(text) >= flag.least):
            raise UsageError(f"--{name} is a whole number from {flag.least}, got {text!r}")
        values[name] = flag.read(text)
    return values


def _default_workdir(config: str) -> Path:
    """Return workdirs/NAME_tiny for NAME:tiny."""
    path, _, form = config.partition(":")
    return Path("workdirs", Path(path).stem + (f"_{form}" if form else ""))


def _read(argv: Sequence[str], base: ConfigDict) -> flags.FlagValues:
    """Parse the flags, with those that override fields of `base`."""
    values = flags.FlagValues()
    for name, flag in FLAGS.items():
        define = flags.DEFINE_boolean if flag.read is bool else flags.DEFINE_string
        define(name, flag.default, flag.description, flag_values=values)
    try:
        config_flags.DEFINE_config_dict("config", base, flag_values=values, sys_argv=[*argv])
        rest = values(argv)
    except flags.UnrecognizedFlagError as error:
        hint = nearest(f"--{error.flagname}", [f"--{name}" for name in values])
        raise UsageError(f"unknown flag --{error.flagname}{hint}") from error
    except flags.IllegalFlagValueError as error:
        raise UsageError(wrong_value(str(error), base)) from error
    except (flags.Error, ValueError, TypeError) as error:
        raise UsageError(str(error).strip().replace("\n", " ")) from error
    if len(rest) > 1:
        raise UsageError(f"unexpected argument {rest[1]!r}: arguments are flags, --name=value")
    return values

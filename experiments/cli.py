"""Command line: modes, flags, help, and one sentence for each mistake."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict

from attention import __version__
from experiments.config import DEFAULT, Config, config_files, import_plugin, load_config
from experiments.config.build import as_tree, converted, flat, helps
from experiments.config.parts import PretrainedPart, TextPart, fitting_warmup
from experiments.errors import UsageError, as_usage_errors, one_of
from experiments.registry import DATASETS, TASKS, datasets_of
from experiments.workdir import Workdir, program_name

# Name of a mode -> help. Its module is experiments.MODE.
MODES = {
    "train": "train a model or continue its run; the default",
    "evaluate": "measure a trained model again",
    "predict": "answer each line of standard input: translate it, continue it, name its class, …",
    "explain": "draw and measure what a trained model attends to",
    "sweep": "train with several seeds or values of fields: mean and standard deviation",
    "prepare": "store the data of a configuration, as the first training does",
    "describe": "count parameters, cache and FLOPs of a model, and draw its masks",
    "benchmark": "measure time, memory and error of attention beside other libraries",
    "ledger": "list the measured runs in workdirs/, or in --workdir, with their scores",
}
MODES_OF_RUNS = ("evaluate", "predict", "explain")  # which need a trained model
MULTI_PROCESS_MODES = ("train", "evaluate")  # modes in which several processes compute one run
# Name of a flag -> the modes that have it, () for all, and its help.
FLAGS = {
    "mode": ((), "one of the modes above"),
    "config": ((), f"a configuration below, NAME:tiny for its tiny form, or a path [{DEFAULT}]"),
    "workdir": ((), "folder of the run; alone, it continues or uses the run that it contains"),
    "cache": ((), "folder of prepared data and compiled programs [.cache]"),
    "plugin": ((), "Python file or module that registers datasets, tasks and the like"),
    "help": ((), "this list; with --config also the fields of that configuration"),
    "version": ((), "the version of the package"),
    "split": (("evaluate", "explain"), "a split, in place of the test splits"),
    "against": (("evaluate",), "another workdir, to compare BLEU with (paired bootstrap)"),
    "wandb": (("train", "sweep"), "Weights & Biases project that takes the metrics too"),
    "weights": (("predict",), "folder of a released checkpoint, in place of a run"),
    "sentence": (("explain",), "a sentence, in place of a split; may be given more than once"),
    "file": (("explain",), "a file of sentences, one a line, or of pairs with a tab between"),
    "gold": (("explain",), "file of word alignments of --file, one a line, as 0-0 1-2 2p1"),
    "gold_first": (("explain",), "number of the first word in --gold, 0 (the default) or 1"),
    "layer": (("explain",), "draw one head of this layer alone too, counted from 1 [the last one]"),
    "head": (("explain",), "draw this head alone too, counted from 1 [the first one]"),
    "format": (("predict",), "text, or json with probabilities and alignments [text]"),
    "seeds": (("sweep",), "the seeds of the runs, as in 0,1,2"),
    "beam": (("prepare",), "options of Apache Beam, as in --runner=DirectRunner"),
    "coordinator": (MULTI_PROCESS_MODES, "HOST:PORT of process 0; srun and mpirun need none"),
    "num_processes": (MULTI_PROCESS_MODES, "number of processes; 1: this one alone"),
    "process_id": (MULTI_PROCESS_MODES, "number of this process, from 0"),
    "profile": (("train",), "write a trace of some steps to the workdir"),
}
DEFAULTS = {"mode": "train", "cache": ".cache", "format": "text"}
SEVERAL = ("config", "sentence")  # flags that may be given more than once
SWITCHES = ("help", "version", "profile")
# Smallest and largest value of the flags that are numbers.
BOUNDS = dict.fromkeys(("layer", "head", "num_processes"), (1, None))
BOUNDS |= {"gold_first": (0, 1), "process_id": (0, None)}
PROCESSES = ("coordinator", "num_processes", "process_id")
# `config.task` of a config that trains nothing -> its mode, and the module of that mode.
OTHER_TASKS = {
    "pretrained": ("predict", "experiments.predict"),
    "preset": ("describe", "experiments.describe"),
    "benchmark": ("benchmark", "experiments.benchmarks.attention"),
    "model_benchmark": ("benchmark", "experiments.benchmarks.models"),
}
# Flags whose values are files or folders, and their types in `Command.options`.
TYPES = {"workdir": Path, "weights": Path, "against": Workdir, "file": Path, "gold": Path}
ALIASES = {"lr": "learning_rate", "warmup": "warmup_steps", "epochs": "duration"}
BETWEEN = re.compile(r",(?![^(\[]*[)\]])")  # commas, but for those of a tuple


class Command(NamedTuple):
    """A parsed command line."""

    mode: str  # one of `MODES`
    config: Config | ConfigDict  # the latter of a task of `OTHER_TASKS`; the first one of `runs`
    workdir: Path  # of the run, or a released checkpoint with `--weights`
    cache: Path  # folder of generated data and compiled programs, shared by runs
    runs: Mapping[str, Config] = MappingProxyType({})  # of a sweep, by name
    options: Mapping[str, Any] = MappingProxyType({})  # values of the flags of the mode
    fields: Sequence[str] = ()  # flags of fields that were given, as "config.seed"
    # Coordinator, number of processes and number of this process.
    processes: tuple[str | None, int | None, int | None] = (None, None, None)


def define_flags() -> flags.FlagValues:
    """Return the flags of all modes, without values."""
    values = flags.FlagValues()
    values.set_gnu_getopt(True)  # flags of fields may be between
    for name, (_, text) in FLAGS.items():
        if name in BOUNDS:
            flags.DEFINE_integer(name, None, text, *BOUNDS[name], values)
        elif name in SWITCHES:
            short = "h" if name == "help" else None
            flags.DEFINE_boolean(name, False, text, values, short_name=short)
        elif name in SEVERAL:
            flags.DEFINE_multi_string(name, None, text, values)
        else:
            flags.DEFINE_string(name, DEFAULTS.get(name), text, values)
    return values


def parse(argv: Sequence[str]) -> Command:
    """Parse the command line, and check the configuration.

    Without `--config`, the configuration is that of the run in `--workdir`, if it contains one.
    Values of fields hold for each run of a sweep.

    Raises:
        UsageError: an unknown flag, mode, configuration or field, or a value of the wrong type.
        SystemExit: `--help` or `--version`, after it is printed.
    """
    values = define_flags()
    fields = _read(values, argv[1:])
    for name in values:
        value = values[name].value
        for text in value if isinstance(value, list) else [value]:
            if text == "" or (name in TYPES and str(text).startswith("--")):
                raise UsageError(f"--{name} needs a value, got none")
    with as_usage_errors():
        one_of("--mode", values.mode, MODES)
        one_of("--format", values.format, ("text", "json"))
    if values.plugin:
        import_plugin(values.plugin)
    if values.help or values.version:
        text = _help(Path(argv[0]).name, values) if values.help else __version__
        print(text, flush=True)
        raise SystemExit(0)
    _check_flags(values)
    if values.mode == "ledger":
        if given := [*(["config"] if values.config else []), *fields]:
            raise UsageError(f"--{given[0]} is not for --mode=ledger, which reads runs alone")
        folder = Path(values.workdir or "workdirs")
        return Command("ledger", ConfigDict(), folder, Path(values.cache))
    grid = {name[5:]: fields.pop(name) for name in [*fields] if name.startswith("grid.")}
    if values.mode == "sweep":
        return _parse_sweep(values, grid, fields)
    if grid:
        raise UsageError(f"--grid.{next(iter(grid))} is for --mode=sweep, got --mode={values.mode}")
    if len(values.config or ()) > 1:
        raise UsageError("--config is given more than once: only --mode=sweep takes several")
    return _parse_run(values, fields, values.workdir, *values.config or ())


def _read(values: flags.FlagValues, arguments: Sequence[str]) -> dict[str, str | None]:
    """Parse flags; return the values of the others, as "config.seed". `~/` is the home folder."""
    home = f"={Path.home()}/"
    known = [
        text if text.startswith("--sentence") else text.replace("=~/", home, 1)
        for text in arguments
    ]
    try:
        _, *others = values(["run.py", *known], known_only=True)
    except flags.IllegalFlagValueError as error:
        name, value = re.match(r"flag --(\w+)=(.*?): ", str(error), re.DOTALL).groups()
        kind = values[name].parser.syntactic_help or "True or False"
        raise UsageError(f"--{name} must be {kind}, got {value!r}") from error
    except (flags.Error, ValueError) as error:  # the latter of a value for --nohelp
        raise UsageError(" ".join(str(error).split())) from error
    fields, name = {}, ""
    for argument in others:
        if name and fields[name] is None and not argument.startswith("-"):
            fields[name] = argument  # after a space
            continue
        flag = r"--?(no(?=config\.))?([a-zA-Z][\w.]*)(?:=(.*))?"
        if not (match := re.fullmatch(flag, argument, re.DOTALL)):
            raise UsageError(f"unexpected argument {argument!r}: arguments are flags, --name=value")
        is_negated, name, text = match.groups()
        if is_negated and text is not None:
            raise UsageError(f"{argument.partition('=')[0]} takes no value, got {text!r}")
        fields[name] = "False" if is_negated else text
    return fields


def _check_flags(values: flags.FlagValues) -> None:
    """Raise a `UsageError` for flags of another mode, or that exclude each other."""
    for name, (modes, _) in FLAGS.items():
        if values[name].present and modes and values.mode not in modes:
            known = " and --mode=".join(modes)
            raise UsageError(f"--{name} is for --mode={known} alone, got --mode={values.mode}")
    if values.weights and values.workdir:
        raise UsageError("--weights names the model: it takes no --workdir")
    if values.gold and not values.file:
        raise UsageError("--gold is for the pairs of a --file")
    given = {name: values[name].value for name in PROCESSES if values[name].value is not None}
    if given in ({}, {"num_processes": 1}):
        return
    if missing := [f"--{name}" for name in PROCESSES if name not in given]:
        together = f"--{', --'.join(PROCESSES)} belong together"
        raise UsageError(f"{together}: {' and '.join(missing)} missing")
    coordinator, number, process = given.values()
    port = re.fullmatch(r".+:(\d+)", coordinator)
    if not port or not 1 <= int(port[1]) <= 65_535:
        raise UsageError(f"--coordinator must be HOST:PORT, got {coordinator!r}")
    if process >= number:
        raise UsageError(f"--process_id must be less than {number} processes, got {process}")


def _parse_run(
    values: flags.FlagValues,
    fields: Mapping[str, str | None],
    folder: str | None,
    name: str | None = None,
) -> Command:
    """Parse the flags of fields for the config of a name; None for that of the run in `folder`."""
    mode, weights = values.mode, values.weights
    default = "pretrained" if weights else mode if mode == "benchmark" else DEFAULT
    workdir = Workdir(weights or folder or default_workdir(name or default))
    # `--workdir` alone continues a run, so that a mistyped one trains no other model.
    continues = mode == "train" and not fields
    has_run = mode == "describe" or continues or workdir.config.exists()
    is_of_run = not name and not weights and (mode in MODES_OF_RUNS or (folder and has_run))
    base = workdir.load_config() if is_of_run else load_config(name or default)
    others = [flag for flag, (modes, _) in FLAGS.items() if mode in (modes or MODES)]
    config = with_fields(base, fields, plugin=values.plugin, others=others)
    modes = [mode for mode in MODES if mode not in ("benchmark", "ledger")]
    modes = [OTHER_TASKS[config.task][0]] if config.task in OTHER_TASKS else modes
    if mode not in modes:
        raise UsageError(f"{config.task} has no mode {mode!r}, it has {', '.join(modes)}")
    if values.against and config.task != "translation":
        raise UsageError(f"--against is for translations, and {config.task} has none")
    options = {
        name: TYPES[name](values[name].value) if name in TYPES else values[name].value
        for name, (modes, _) in FLAGS.items()
        if values[name].present and modes and name not in (*PROCESSES, "weights", "seeds")
    }
    options |= {"is_of_run": bool(is_of_run)} if mode == "describe" else {}
    processes = values.coordinator, values.num_processes, values.process_id
    cache = Path(values.cache)
    return Command(mode, config, workdir.path, cache, {}, options, (*fields,), processes)


def _parse_sweep(
    values: flags.FlagValues, grid: dict[str, str | None], fields: Mapping[str, str | None]
) -> Command:
    """Parse the flags for each run of a sweep, by name, as "learning_rate=0.003,seed=1".

    Without configurations and fields that vary, the runs are those in the folder `--workdir`.
    """
    folder, names = values.workdir, values.config or []
    if values.seeds and "seed" in grid:
        raise UsageError("the seeds of the sweep are given twice, by --seeds and --grid.seed")
    if seeds := grid.pop("seed", values.seeds):
        grid["seed"] = seeds  # the last one in the name of a run
    axes = {name: [*map(str.strip, BETWEEN.split(text or ""))] for name, text in grid.items()}
    for name, texts in axes.items():
        if not all(texts):
            raise UsageError(f"--grid.{name} needs a list of values, as in 1,2, got {grid[name]!r}")
    commands: dict[str, Command] = {}
    if folder and not names and not axes:
        for path in sorted(Path(folder).glob("*/config.json")):
            commands[path.parent.name] = _parse_run(values, fields, str(path.parent))
        if not commands:
            raise UsageError(f"{folder} contains no runs: name a --config")
    elif not axes and len(names) < 2:
        raise UsageError("--mode=sweep needs --seeds=0,1,2 or --grid.FIELD=VALUE,VALUE")
    # Only the seed of a run is called "seed": runs that differ in another one are not averaged.
    last = ["seed", *(field.split(".")[-1] for field in axes if field != "seed")]
    short = {
        field: end if last.count(end := field.split(".")[-1]) == 1 else field for field in axes
    }
    for name, *chosen in () if commands else product(names or [DEFAULT], *axes.values()):
        own = {f"config.{field}": text for field, text in zip(axes, chosen, strict=True)}
        command = _parse_run(values, {**fields, **own}, None, name)
        parts = [default_workdir(name).name] if len(names) > 1 else []
        for field in axes:
            parts.append(f"{short[field]}={reduce(getattr, field.split('.'), command.config)}")
        run = ",".join(parts).replace(" ", "").replace("/", "_")
        if run in commands:
            raise UsageError(f"the run {run!r} occurs twice")
        commands[run] = command
    default = "+".join(default_workdir(name).name for name in names or [DEFAULT]) + "_sweep"
    runs = {run: command.config for run, command in commands.items()}
    workdir = Path(folder or f"workdirs/{default}")
    return next(iter(commands.values()))._replace(workdir=workdir, runs=runs)


def with_fields(
    config: ConfigDict,
    given: Mapping[str, str | None],
    *,
    plugin: str | None = None,
    others: Iterable[str] = (),
) -> Config | ConfigDict:
    """Return a config of all fields with the values of flags such as `--config.model.width=64`.

    The name of another dataset or architecture replaces `config.data` or `config.model` by its
    defaults. Without `train.warmup_steps`, the warm-up is shortened to fit `train.steps`. Hints
    name the fields, and `others`, which are other flags.

    Raises:
        UsageError: an unknown field, or a value that it cannot have.
    """
    with as_usage_errors():
        one_of("task", config.get("task"), (*TASKS, *OTHER_TASKS))
    tree, is_task = config.to_dict(), config.task in TASKS
    if plugin and is_task:
        tree["plugin"] = plugin
    name, architecture = given.get("config.data.name"), given.get("config.architecture")
    if is_task and name in DATASETS and name != tree["data"]["name"]:
        tree["data"] = as_tree(DATASETS[name].config())
        for part in ("text", "literature"):  # which belonged to the other data
            tree.pop(part, None)
        if DATASETS[name].config.is_shared is None:
            tree["text"] = as_tree(TextPart())
    models = TASKS[config.task].parts.models if is_task else {}
    if architecture in models and architecture != tree["architecture"]:
        longest = tree["model"]["max_length"]
        tree["model"] = as_tree(models[architecture]()) | {"max_length": longest}
    known = flat(tree)
    for name, text in given.items():
        field = name.removeprefix("config.")
        if field != name and (inner := [each for each in known if each.startswith(f"{field}.")]):
            raise UsageError(f"--{name} names {len(inner)} fields: choose one, as {inner[0]!r}")
        if field not in known or field == name:
            unknown = f"the configuration has no field {field!r}"
            unknown = f"unknown flag --{name}" if field == name else unknown
            raise UsageError(unknown + _hint(name, known, others))
        if text is None and not isinstance(known[field], bool):
            raise UsageError(f"--{name} needs a value, got none")
        *parts, last = field.split(".")
        text = "True" if text is None else text
        section = reduce(dict.__getitem__, parts, tree)
        section[last] = text if is_task else converted(type(known[field]), text, field)
    if not is_task:
        return ConfigDict(tree)
    train = tree["train"]
    if {"config.train.steps", "config.train.duration"} <= given.keys():
        raise UsageError("--config.train.duration is in place of --config.train.steps: give one")
    if "config.train.steps" in given and "config.train.warmup_steps" not in given:
        steps = converted(int, train["steps"], "train.steps")
        train["warmup_steps"] = fitting_warmup(train["warmup_steps"], steps)
    return Config.read(tree)


def _hint(wanted: str, fields: Iterable[str], others: Iterable[str]) -> str:
    """Return "; did you mean --FLAG?" for an unknown flag or field, "" if none is similar."""
    names = {field.split(".")[-1]: field for field in sorted(fields, key=len, reverse=True)}
    names |= {alias: names[name] for alias, name in ALIASES.items() if name in names}
    near = get_close_matches(wanted.split(".")[-1], [*names, *others], 1, cutoff=0.7)
    flag = f"config.{names[near[0]]}" if near and near[0] in names else "".join(near)
    return f"; did you mean --{flag}?" if near else ""


def _help(program: str, values: flags.FlagValues) -> str:
    """Return the help: modes, configurations, flags, and the fields of the named configurations."""
    texts = {}
    for name, (modes, text) in FLAGS.items():
        where = f"with --mode={' or '.join(modes)}: " if modes else ""
        texts[f"--{name}"] = where + text
    texts["--config.FIELD"] = "a value for a field; --help --config=CONFIG lists the fields"
    texts["--grid.FIELD"] = "with --mode=sweep: values of a field, as in 1e-3,3e-3"
    # The first line of a file is that of its docstring.
    first = {path.stem: path.read_text("utf-8").partition("\n")[0] for path in config_files()}
    titles = {name: line.strip('"') for name, line in first.items()}
    parts = [
        f"usage: {program_name(program)} [--mode=MODE] [--config=CONFIG] [--config.FIELD=VALUE] …",
        _section("modes", MODES),
        _section("configurations", titles),
        _section("flags", texts),
    ]
    for name in values.config or ():
        config, texts = with_fields(load_config(name), {}), {}
        if config.task in TASKS:
            texts = helps(config) | {"data.name": f"one of {', '.join(datasets_of(config.task))}"}
        elif config.task == "pretrained":
            texts = helps(PretrainedPart(), "decoding.")
        rows = {
            f"--config.{field}": f"{value!r}  {texts.get(field, '')}"
            for field, value in flat(config.to_dict()).items()
        }
        parts.append(_section(f"fields of {name}", rows))
    return "\n\n".join(parts)


def _section(title: str, rows: Mapping[str, str]) -> str:
    width = max(map(len, rows))
    lines = (f"  {name:{width}}  {text}".rstrip() for name, text in rows.items())
    return "\n".join([f"{title}:", *lines])


def default_workdir(config: str) -> Path:
    """Return workdirs/NAME_tiny for NAME:tiny."""
    path, _, form = config.partition(":")
    return Path("workdirs", Path(path).stem + (f"_{form}" if form else ""))

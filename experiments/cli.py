"""Command line: modes, flags, help, and one sentence for each mistake."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial, reduce
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict

from experiments.config import Config
from experiments.config.build import as_tree, converted, flat, helps
from experiments.config.files import DEFAULT, config_files, import_plugin, load_config
from experiments.config.parts import TextPart, fitting_warmup
from experiments.errors import UsageError, as_usage_errors, one_of
from experiments.registry import DATASETS, TASKS, datasets_of
from experiments.workdir import Workdir

PROCESSES = ("coordinator", "num_processes", "process_id")
# Name of a mode -> help, and the flags that not all modes have. Its module is experiments.MODE.
MODES = {
    "train": ("train a model or continue its run; the default", ("profile", "wandb", *PROCESSES)),
    "evaluate": ("measure a trained model again", ("split", "against", *PROCESSES)),
    "predict": (
        "answer each line of standard input: translate it, continue it, name its class, …",
        ("weights", "format"),
    ),
    "explain": (
        "draw and measure what a trained model attends to",
        ("split", "sentence", "file", "gold", "gold_first", "layer", "head"),
    ),
    "sweep": (
        "train with several seeds or values of fields: mean and standard deviation",
        ("seeds", "wandb"),
    ),
    "prepare": ("store the data of a configuration, as the first training does", ("beam",)),
    "describe": ("count parameters, cache and FLOPs of a model, and draw its masks", ()),
    "benchmark": ("measure time, memory and error of attention beside other libraries", ()),
    "ledger": ("list the runs in workdirs/, or in --workdir, with their scores", ()),
}
# `config.task` of a config that trains nothing -> its mode, and the module of that mode.
OTHER_TASKS = {
    "pretrained": ("predict", "experiments.predict"),
    "preset": ("describe", "experiments.describe"),
    "benchmark": ("benchmark", "experiments.benchmarks.attention"),
    "model_benchmark": ("benchmark", "experiments.benchmarks.models"),
}
MODES_OF_TASKS = tuple(mode for mode in MODES if mode not in ("benchmark", "ledger"))
MODES_OF_RUNS = ("evaluate", "predict", "explain")  # which need a trained model
MULTI_PROCESS_MODES = ("train", "evaluate")  # modes in which several processes compute one run
# Flags whose values are files or folders, and their types in `Command.options`.
TYPES = {"workdir": Path, "weights": Path, "against": Workdir, "file": Path, "gold": Path}
ALIASES = {"lr": "learning_rate", "warmup": "warmup_steps", "epochs": "duration"}
BETWEEN = re.compile(r",(?![^(\[]*[)\]])")  # commas, but for those of a tuple


class Command(NamedTuple):
    """A parsed command line.

    Attributes:
        mode: one of `MODES`.
        config: of the run, or the ConfigDict of a task of `OTHER_TASKS`; the first one of `runs`.
        workdir: folder of the run, or of a released checkpoint with `--weights`.
        cache: folder of generated data and compiled programs, shared by runs.
        runs: the configurations of the runs of a sweep by name.
        options: values of the flags of the mode that were given.
        fields: names of the flags of fields that were given, as "config.seed".
        processes: coordinator, number of processes and number of this process.
    """

    mode: str
    config: Config | ConfigDict
    workdir: Path
    cache: Path
    runs: Mapping[str, Config] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})
    fields: Sequence[str] = ()
    processes: tuple[str | None, int | None, int | None] = (None, None, None)


def define_flags() -> flags.FlagValues:
    """Return the flags of all modes, without values."""
    values = flags.FlagValues()
    values.set_gnu_getopt(True)  # flags of fields may be between
    text = partial(flags.DEFINE_string, default=None, flag_values=values)
    texts = partial(flags.DEFINE_multi_string, default=None, flag_values=values)
    number = partial(flags.DEFINE_integer, default=None, lower_bound=1, flag_values=values)
    switch = partial(flags.DEFINE_boolean, default=False, flag_values=values)
    text("mode", default="train", help="one of the modes above")
    texts(
        "config", help=f"a configuration below, NAME:tiny for its tiny form, or a path [{DEFAULT}]"
    )
    text("workdir", help="folder of the run; alone, it continues or uses the run that it contains")
    text("cache", default=".cache", help="folder of generated data and compiled programs")
    text("plugin", help="Python file or module that registers datasets, tasks and the like")
    switch("help", help="this list, with --config its fields", short_name="h")
    text("split", help="the one split that is used")
    text("against", help="another workdir, to compare BLEU with (paired bootstrap)")
    text("wandb", help="Weights & Biases project that takes the metrics too")
    text("weights", help="folder of a released checkpoint, in place of a run")
    texts("sentence", help="a sentence, in place of those of a split; may be given more than once")
    text("file", help="a file of sentences, one a line, or of pairs with a tab between")
    text("gold", help="word alignments of the pairs of --file, one line for each, as 0-0 1-2 2p1")
    first = "number of the first word in --gold, 0 (the default) or 1"
    number("gold_first", help=first, lower_bound=0, upper_bound=1)
    number("layer", help="the layer of a head that is drawn alone too, from 1 [the last one]")
    number("head", help="the head that is drawn alone too, from 1 [the first one]")
    text("format", default="text", help="text, or json with probabilities and alignments")
    text("seeds", help="the seeds of the runs, as in 0,1,2")
    text("beam", help="options of Apache Beam, as in --runner=DirectRunner")
    text("coordinator", help="HOST:PORT, where process 0 of several listens; SLURM needs none")
    number("num_processes", help="with --coordinator; 1 for one process alone")
    process = "with --coordinator: the number of this process, from 0"
    number("process_id", help=process, lower_bound=0)
    switch("profile", help="write a trace of some steps to the workdir")
    return values


def parse(argv: Sequence[str]) -> Command:
    """Parse the command line, and check the configuration.

    Without `--config`, the configuration is that of the run in `--workdir`, if it contains one.
    Values of fields hold for each run of a sweep.

    Args:
        argv: the name of the program and its arguments.

    Raises:
        UsageError: an unknown flag, mode, configuration or field, or a value of the wrong type.
        SystemExit: `--help`, after the help is printed.
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
    if values.help:
        print(help_text(values), flush=True)
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
    """Parse flags; return the values of the others, as "config.seed". `~/` is the home folder.

    Raises:
        UsageError: a value of another type, or none.
    """
    home = f"={Path.home()}/"
    known = [
        text if text.startswith("--sentence") else text.replace("=~/", home, 1)
        for text in arguments
    ]
    try:
        _, *others = values(["run.py", *known], known_only=True)
    except flags.Error as error:
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
        fields[name] = "False" if is_negated else text
    return fields


def _check_flags(values: flags.FlagValues) -> None:
    """Raise a `UsageError` for flags of another mode, or that exclude each other."""
    for name in values:
        modes = [mode for mode, (_, own) in MODES.items() if name in own]
        if values[name].present and modes and values.mode not in modes:
            known = " and --mode=".join(modes)
            raise UsageError(f"--{name} is for --mode={known} alone, got --mode={values.mode}")
    if values.weights and values.workdir:
        raise UsageError("--weights names the model: it takes no --workdir")
    if values.gold and not values.file:
        raise UsageError("--gold is for the pairs of a --file")
    if Path(values.cache).exists() and not Path(values.cache).is_dir():
        raise UsageError(f"--cache={values.cache} is no folder")
    given = {name: values[name].value for name in PROCESSES if values[name].value is not None}
    if given in ({}, {"num_processes": 1}):
        return
    if missing := [f"--{name}" for name in PROCESSES if name not in given]:
        together = f"--{', --'.join(PROCESSES)} belong together"
        raise UsageError(f"{together}: {' and '.join(missing)} missing")
    coordinator, number, process = given.values()
    port = re.fullmatch(r".+:(\d{1,5})", coordinator)
    if not port or not 1 <= int(port[1]) <= 65_535:
        raise UsageError(
            f"--coordinator is HOST:PORT with a port from 1 to 65535, got {coordinator!r}"
        )
    if process >= number:
        raise UsageError(
            f"--process_id is from 0 to {number - 1} with --num_processes={number}, got {process}"
        )


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
    has_run = mode == "describe" or workdir.config.exists()
    is_of_run = not name and not weights and (mode in MODES_OF_RUNS or (folder and has_run))
    base = workdir.load_config() if is_of_run else load_config(name or default)
    config = with_fields(base, fields, plugin=values.plugin, others=values)
    modes = [OTHER_TASKS[config.task][0]] if config.task in OTHER_TASKS else MODES_OF_TASKS
    if mode not in modes:
        raise UsageError(f"{config.task} has no mode {mode!r}, it has {', '.join(modes)}")
    if values.against and config.task != "translation":
        raise UsageError(f"--against is for translations, and {config.task} has none")
    options = {
        name: TYPES[name](values[name].value) if name in TYPES else values[name].value
        for name in MODES[mode][1]
        if values[name].present and name not in (*PROCESSES, "weights", "seeds")
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
        point = dict(zip(axes, chosen, strict=True))
        own = {f"config.{field}": text for field, text in point.items()}
        try:
            command = _parse_run(values, {**fields, **own}, None, name)
        except UsageError as error:
            where = ", ".join(f"{field}={text}" for field, text in point.items())
            raise UsageError(f"{where}: {error}") from error
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
    """Return a config with the values of flags such as `--config.model.width=64`.

    The name of another dataset or architecture replaces `config.data` or `config.model` by its
    defaults. Without `train.warmup_steps`, the warm-up is shortened to fit `train.steps`.

    Args:
        config: of a file or of a run, with all fields.
        given: values of flags, by name.
        plugin: that was imported.
        others: names of flags that are no fields, for hints.

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
    if "config.train.steps" in given and "config.train.warmup_steps" not in given:
        steps = converted(int, train["steps"], "train.steps")
        train["warmup_steps"] = fitting_warmup(train["warmup_steps"], steps)
    return Config.read(tree)


def _hint(wanted: str, fields: Iterable[str], others: Iterable[str]) -> str:
    """Return "; did you mean --FLAG?" for an unknown flag or field, "" if none is similar."""
    last = wanted.split(".")[-1]
    ends = {field.split(".")[-1]: field for field in sorted(fields, key=len, reverse=True)}
    names = [*others, *(f"config.{field}" for field in fields)]
    if same := ends.get(ALIASES.get(last, last)):
        near = [f"config.{same}"]
    elif not (near := get_close_matches(wanted, names, n=1)):
        near = [f"config.{ends[each]}" for each in get_close_matches(last, ends, 1, cutoff=0.7)]
    return f"; did you mean --{near[0]}?" if near else ""


def help_text(values: flags.FlagValues) -> str:
    """Return the help: modes, configurations and flags, and the fields of the named configurations.

    Raises:
        UsageError: a configuration that cannot be loaded.
    """
    texts = {}
    for name in values:
        modes = [mode for mode, (_, own) in MODES.items() if name in own]
        where = f"with --mode={' or '.join(modes)}: " if modes else ""
        texts[f"--{name}"] = where + values[name].help.partition(";\n")[0]
    texts["--config.FIELD"] = "a value for a field; --help --config=CONFIG lists the fields"
    texts["--grid.FIELD"] = "with --mode=sweep: values of a field, as in 1e-3,3e-3"
    # The first line of a file is that of its docstring.
    titles = {path.stem: path.read_text().partition("\n")[0].strip('"') for path in config_files()}
    parts = [
        "usage: python run.py [--mode=MODE] [--config=CONFIG] [--config.FIELD=VALUE] …",
        _section("modes", {mode: text for mode, (text, _) in MODES.items()}),
        _section("configurations", titles),
        _section("flags", texts),
    ]
    for name in values.config or ():
        config, texts = with_fields(load_config(name), {}), {}
        if config.task in TASKS:
            texts = helps(config) | {"data.name": f"one of {', '.join(datasets_of(config.task))}"}
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

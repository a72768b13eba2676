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

    def text(name: str, help_text: str, default: str | None = None) -> None:
        flags.DEFINE_string(name, default, help_text, values)

    def number(name: str, help_text: str, least: int = 1, most: int | None = None) -> None:
        flags.DEFINE_integer(name, None, help_text, least, most, values)

    text("mode", "one of the modes above", "train")
    files = f"a configuration below, NAME:tiny for its tiny form, or a path [{DEFAULT}]"
    flags.DEFINE_multi_string("config", None, files, values)
    text("workdir", "folder of the run; alone, it continues or uses the run that it contains")
    text("cache", "folder of generated data and compiled programs", ".cache")
    text("plugin", "Python file or module that registers datasets, tasks and the like")
    flags.DEFINE_boolean(
        "help", False, "this list, with --config its fields", values, short_name="h"
    )
    text("split", "the one split that is used")
    text("against", "another workdir, to compare BLEU with (paired bootstrap)")
    text("wandb", "Weights & Biases project that takes the metrics too")
    text("weights", "folder of a released checkpoint, in place of a run")
    sentence = "a sentence, in place of those of a split; may be given more than once"
    flags.DEFINE_multi_string("sentence", None, sentence, values)
    text("file", "a file of sentences, one a line, or of pairs with a tab between")
    text("gold", "word alignments of the pairs of --file, one line for each, as 0-0 1-2 2p1")
    number("gold_first", "number of the first word in --gold, 0 (the default) or 1", 0, 1)
    number("layer", "the layer of a head that is drawn alone too, from 1 [the last one]")
    number("head", "the head that is drawn alone too, from 1 [the first one]")
    text("format", "text, or json with probabilities and alignments", "text")
    text("seeds", "the seeds of the runs, as in 0,1,2")
    text("beam", "options of Apache Beam, as in --runner=DirectRunner")
    text("coordinator", "HOST:PORT, where process 0 of several listens; SLURM needs none")
    number("num_processes", "with --coordinator; 1 for one process alone")
    number("process_id", "with --coordinator: the number of this process, from 0", 0)
    flags.DEFINE_boolean("profile", False, "write a trace of some steps to the workdir", values)
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
    axes = {name: fields.pop(name) for name in [*fields] if name.startswith("grid.")}
    if values.mode == "sweep":
        return _parse_sweep(values, _axes(axes, values.seeds), fields)
    if axes:
        raise UsageError(f"--{next(iter(axes))} is for --mode=sweep, got --mode={values.mode}")
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
    except flags.IllegalFlagValueError as error:
        name, value = re.match(r"flag --(\w+)=(.*?): ", str(error), re.DOTALL).groups()
        kind = values[name].parser.syntactic_help or "True or False"
        raise UsageError(f"--{name} must be {kind}, got {value!r}") from error
    except (flags.Error, ValueError, TypeError) as error:
        raise UsageError(" ".join(str(error).split())) from error
    fields, name = {}, ""
    for argument in others:
        if name and fields[name] is None and not argument.startswith("-"):
            fields[name] = argument  # after a space
            continue
        if not (match := re.fullmatch(r"--?([a-zA-Z][\w.]*)(?:=(.*))?", argument, re.DOTALL)):
            raise UsageError(f"unexpected argument {argument!r}: arguments are flags, --name=value")
        name = match[1]
        fields[name] = match[2]
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
    coordinator, number, process = (values[name].value for name in PROCESSES)
    missing = [f"--{name}" for name in PROCESSES if values[name].value is None]
    if len(missing) == 3 or (len(missing) == 2 and number == 1):
        return
    if missing:
        together = f"--{', --'.join(PROCESSES)} belong together"
        raise UsageError(f"{together}: {' and '.join(missing)} missing")
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
        name: TYPES.get(name, lambda value: value)(values[name].value)
        for name in MODES[mode][1]
        if values[name].present and name not in (*PROCESSES, "weights", "seeds")
    }
    options |= {"is_of_run": bool(is_of_run)} if mode == "describe" else {}
    processes = tuple(values[name].value for name in PROCESSES)
    cache = Path(values.cache)
    return Command(mode, config, workdir.path, cache, {}, options, (*fields,), processes)


def _parse_sweep(
    values: flags.FlagValues,
    axes: Mapping[str, Sequence[str]],
    fields: Mapping[str, str | None],
) -> Command:
    """Parse the flags for each run of a sweep, by name, as "learning_rate=0.003,seed=1".

    Without configurations and fields that vary, the runs are those in the folder `--workdir`.
    """
    folder, names = values.workdir, values.config or []
    commands: dict[str, Command] = {}
    if folder and not names and not axes:
        for path in sorted(Path(folder).glob("*/config.json")):
            commands[path.parent.name] = _parse_run(values, fields, str(path.parent))
        if not commands:
            raise UsageError(f"{folder} contains no runs: name a --config")
    elif not axes and len(names) < 2:
        raise UsageError("--mode=sweep needs --seeds=0,1,2 or --grid.FIELD=VALUE,VALUE")
    names = names or [DEFAULT]
    # Only the seed of a run is called "seed": runs that differ in another one are not averaged.
    last = ["seed", *(field.split(".")[-1] for field in axes if field != "seed")]
    for name, *chosen in product(names, *axes.values()) if axes or len(names) > 1 else ():
        values_of_run = {f"config.{field}": text for field, text in zip(axes, chosen, strict=True)}
        try:
            command = _parse_run(values, {**fields, **values_of_run}, None, name)
        except UsageError as error:
            point = ", ".join(f"{field}={text}" for field, text in zip(axes, chosen, strict=True))
            raise UsageError(f"{point}: {error}") from error
        parts = [default_workdir(name).name] if len(names) > 1 or not axes else []
        for field in axes:
            short = field.split(".")[-1]
            short = short if last.count(short) == 1 else field
            parts.append(f"{short}={reduce(getattr, field.split('.'), command.config)}")
        run = ",".join(parts).replace(" ", "").replace("/", "_")
        if run in commands:
            raise UsageError(f"the run {run!r} occurs twice")
        commands[run] = command
    default = Path("workdirs", "+".join(default_workdir(name).name for name in names) + "_sweep")
    runs = {run: command.config for run, command in commands.items()}
    return next(iter(commands.values()))._replace(workdir=Path(folder or default), runs=runs)


def _axes(grid: Mapping[str, str | None], seeds: str | None) -> dict[str, list[str]]:
    """Return the values of each field that varies, the seeds last.

    Raises:
        UsageError: an empty list, or seeds that are given twice.
    """
    if seeds and "grid.seed" in grid:
        raise UsageError("the seeds of the sweep are given twice, by --seeds and --grid.seed")
    texts = {name: text for name, text in grid.items() if name != "grid.seed"}
    if seeds := grid.get("grid.seed", seeds):
        texts["grid.seed"] = seeds
    axes = {}
    for name, text in texts.items():
        axes[name.removeprefix("grid.")] = values = [*map(str.strip, BETWEEN.split(text or ""))]
        if not all(values):
            raise UsageError(f"--{name} needs a list of values, as in 1,2, got {text!r}")
    return axes


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
        config: of a file or of a run; fields that it lacks have their defaults.
        given: values of flags, by name.
        plugin: that was imported.
        others: names of flags that are no fields, for hints.

    Raises:
        UsageError: an unknown field, or a value that it cannot have.
    """
    with as_usage_errors():
        one_of("task", config.get("task"), (*TASKS, *OTHER_TASKS))
    tree = config.to_dict()
    if is_task := config.task in TASKS:
        tree = _with_parts(tree | ({"plugin": plugin} if plugin else {}), given)
    known = flat(tree)
    for name, text in given.items():
        field = name.removeprefix("no").removeprefix("config.")
        if text is None and isinstance(known.get(field), bool):
            text = str(not name.startswith("no"))
        if name == field or (name.startswith("no") and text != "False"):
            raise UsageError(f"unknown flag --{name}{_hint(name, known, others)}")
        if field not in known:
            hint = _hint(name, known, others)
            raise UsageError(f"the configuration has no field {field!r}{hint}")
        if text is None:
            raise UsageError(f"--{name} needs a value, got none")
        *parts, last = field.split(".")
        section = reduce(dict.__getitem__, parts, tree)
        section[last] = text if is_task else converted(type(section[last]), text, field)
    if not is_task:
        return ConfigDict(tree)
    train = tree["train"]
    if "config.train.steps" in given and "config.train.warmup_steps" not in given:
        steps = converted(int, train["steps"], "train.steps")
        train["warmup_steps"] = fitting_warmup(train["warmup_steps"], steps)
    return Config.read(tree)


def _with_parts(tree: dict[str, Any], given: Mapping[str, str | None]) -> dict[str, Any]:
    """Return all fields of a config, with defaults of the data and model that flags name."""
    tree = Config.read(tree).to_dict()
    name, architecture = given.get("config.data.name"), given.get("config.architecture")
    if name in DATASETS and name != tree["data"]["name"]:
        kind = DATASETS[name].config
        tree["data"] = as_tree(kind())
        for part in ("text", "literature"):  # which belonged to the other data
            tree.pop(part, None)
        if kind.is_shared is None:
            tree["text"] = as_tree(TextPart())
    models = TASKS[tree["task"]].parts.models
    if architecture in models and architecture != tree["architecture"]:
        longest = tree["model"]["max_length"]
        tree["model"] = as_tree(models[architecture]()) | {"max_length": longest}
    return tree


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

"""Command line: modes, flags, help, and one sentence for each mistake."""

import ast
import codecs
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TextIO

from absl import flags
from ml_collections import ConfigDict, config_flags

from experiments.config import Config
from experiments.config.build import as_config_dict, flat, helps
from experiments.config.data import TextPart
from experiments.config.files import DEFAULT, config_files, import_plugin, load_config
from experiments.config.train import fitting_warmup
from experiments.errors import UsageError, as_usage_errors, one_of
from experiments.registry import DATASETS, TASKS, datasets_of
from experiments.workdir import CHANGEABLE, MESH, Workdir

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
        ("split", "sentence", "file", "gold", "gold_first"),
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
OF_TASKS = tuple(mode for mode in MODES if mode not in ("benchmark", "ledger"))
USES = ("evaluate", "predict", "explain")  # modes that need a trained model
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
        processes: coordinator, number of processes and number of this process.
    """

    mode: str
    config: Config | ConfigDict
    workdir: Path
    cache: Path
    runs: Mapping[str, Config] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})
    processes: tuple[str | None, int | None, int | None] = (None, None, None)


def define_flags() -> flags.FlagValues:
    """Return the flags of all modes, without values."""
    values = _flag_values()

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
        given = values[name].value
        for value in given if isinstance(given, list) else [given]:
            if value == "" or (name in TYPES and str(value).startswith("--")):
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
        return Command(
            "ledger", ConfigDict(), Path(values.workdir or "workdirs"), Path(values.cache)
        )
    axes, fields = read_axes(values, fields)
    if values.mode == "sweep":
        return _parse_sweep(values, axes, fields)
    if axes:
        raise UsageError(f"--grid.{next(iter(axes))} is for --mode=sweep, got --mode={values.mode}")
    if len(values.config or ()) > 1:
        raise UsageError("--config is given more than once: only --mode=sweep takes several")
    return _parse_run(values, fields, values.workdir, *values.config or ())


def _flag_values() -> flags.FlagValues:
    values = flags.FlagValues()
    values.set_gnu_getopt(True)  # flags of other sets may be between
    return values


def _read(values: flags.FlagValues, arguments: Sequence[str]) -> list[str]:
    """Parse flags; return the arguments that are others. `~` is the home folder, but in a sentence.

    Raises:
        UsageError: a value of another type, or none.
    """
    given = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        is_path = flag.startswith("-") and not flag.endswith("sentence")
        given.append(flag + equals + (os.path.expanduser(value) if is_path else value))
    try:
        return values(["run.py", *given], known_only=True)[1:]
    except flags.IllegalFlagValueError as error:
        found = re.match(r"flag --([\w.]+)=(.*?): ", str(error), re.DOTALL)
        kind = values[found[1]].parser.syntactic_help or "True or False"
        raise UsageError(f"--{found[1]} must be {kind}, got {found[2]!r}") from error
    except (flags.Error, ValueError, TypeError) as error:
        raise UsageError(" ".join(str(error).split())) from error


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
    values: flags.FlagValues, fields: Sequence[str], place: str | None, name: str | None = None
) -> Command:
    """Parse the flags of fields for the config of a name; None for that of the run in `place`."""
    mode, weights = values.mode, values.weights
    default = "pretrained" if weights else mode if mode == "benchmark" else DEFAULT
    workdir = Workdir(weights or place or default_workdir(name or default))
    has_run = mode == "describe" or workdir.config.exists()
    is_of_run = not name and not weights and (mode in USES or (place is not None and has_run))
    base = workdir.load_config() if is_of_run else load_config(name or default)
    config = with_fields(base, fields, plugin=values.plugin, others=values)
    modes = [OTHER_TASKS[config.task][0]] if config.task in OTHER_TASKS else OF_TASKS
    if mode not in modes:
        raise UsageError(f"{config.task} has no mode {mode!r}, it has {', '.join(modes)}")
    if values.against and config.task != "translation":
        raise UsageError(f"--against is for translations, and {config.task} has none")
    if mode in USES and not weights and workdir.config.exists():
        _check_training(mode, field_names(fields), config, workdir)
    options = {
        name: TYPES.get(name, lambda value: value)(values[name].value)
        for name in MODES[mode][1]
        if values[name].present and name not in (*PROCESSES, "weights", "seeds")
    }
    options |= {"is_of_run": is_of_run} if mode == "describe" else {}
    processes = tuple(values[name].value for name in PROCESSES)
    cache = Path(values.cache)
    return Command(mode, config, workdir.path, cache, {}, options, processes)


def _check_training(mode: str, given: Sequence[str], config: Config, workdir: Workdir) -> None:
    """Raise a `UsageError` for a flag that changes the training of a run that is only used."""
    there, here = (flat(each.to_dict()) for each in (workdir.load_config(), config))
    for name in CHANGEABLE:
        if name not in MESH and f"config.{name}" in given and there.get(name) != here[name]:
            raise UsageError(
                f"--config.{name}={here[name]} is for training: --mode={mode} uses the run of "
                f"{workdir.path} as it was trained, with {there.get(name)!r}"
            )


def _parse_sweep(
    values: flags.FlagValues, axes: Mapping[str, Sequence[str]], fields: Sequence[str]
) -> Command:
    """Parse the flags for each run of a sweep, by name, as "learning_rate=0.003,seed=1".

    Without configurations and fields that vary, the runs are those in the folder `--workdir`.
    """
    place, names = values.workdir, values.config or []
    commands: dict[str, Command] = {}
    if place and not names and not axes:
        for path in sorted(Path(place).glob("*/config.json")):
            commands[path.parent.name] = _parse_run(values, fields, str(path.parent))
        if not commands:
            raise UsageError(f"{place} contains no runs: name a --config")
    elif not axes and len(names) < 2:
        raise UsageError("--mode=sweep needs --seeds=0,1,2 or --grid.FIELD=VALUE,VALUE")
    names = names or [DEFAULT]
    # Only the seed of a run is called "seed": runs that differ in another one are not averaged.
    last = ["seed", *(field.split(".")[-1] for field in axes if field != "seed")]
    for name, *chosen in product(names, *axes.values()) if axes or len(names) > 1 else ():
        pairs = dict(zip(axes, chosen, strict=True))
        try:
            flags_of_run = [f"--config.{field}={value}" for field, value in pairs.items()]
            command = _parse_run(values, [*fields, *flags_of_run], None, name)
        except UsageError as error:
            grid = "".join(f"--grid.{field}={value}: " for field, value in pairs.items())
            raise UsageError(f"{grid}{error}") from error
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
    return next(iter(commands.values()))._replace(workdir=Path(place or default), runs=runs)


def read_axes(
    values: flags.FlagValues, arguments: Sequence[str]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the values of each field that varies, the seeds last, and the other arguments.

    Raises:
        UsageError: an empty list, or a field that is given twice.
    """
    names = [name for name in dict.fromkeys(field_names(arguments)) if name.startswith("grid.")]
    read = _flag_values()
    for name in names:
        flags.DEFINE_multi_string(name, None, "values of a field", read)
    rest = _read(read, arguments)
    lists = {name.removeprefix("grid."): read[name].value for name in names}
    if values.seeds or "seed" in lists:
        lists["seed"] = [*lists.pop("seed", []), *([values.seeds] if values.seeds else [])]
    for field, texts in lists.items():
        if len(texts) > 1:
            raise UsageError(f"the field {field!r} of the sweep is given twice")
        if not all(text.strip() for text in BETWEEN.split(texts[0])):
            raise UsageError(f"--grid.{field} needs a list of values, as in 1,2, got {texts[0]!r}")
    split = {field: [*map(str.strip, BETWEEN.split(texts[0]))] for field, texts in lists.items()}
    return split, rest


def with_fields(
    config: ConfigDict,
    arguments: Sequence[str],
    *,
    plugin: str | None = None,
    others: Iterable[str] = (),
) -> Config | ConfigDict:
    """Return a config with the values of flags such as `--config.model.width=64`.

    The name of another dataset or architecture replaces `config.data` or `config.model` by its
    defaults. Without `train.warmup_steps`, the warm-up is shortened to fit `train.steps`.

    Args:
        config: of a file or of a run; fields that it lacks have their defaults.
        arguments: the flags.
        plugin: that was imported.
        others: names of flags that are no fields, for hints.

    Raises:
        UsageError: an unknown field, or a value that it cannot have.
    """
    with as_usage_errors():
        one_of("task", config.get("task"), (*TASKS, *OTHER_TASKS))
    if is_task := config.task in TASKS:
        config = as_config_dict(Config.read(config.to_dict()))
        config.update({"plugin": plugin} if plugin else {})
        arguments = _choose(config, arguments)
    given = field_names(arguments)
    known = flat(config)
    for name in given:
        field = name.removeprefix("config.")
        if name == field:
            raise UsageError(f"unknown flag --{name}{_hint(name, known, others)}")
        if field not in known and not any(each.startswith(f"{field}.") for each in known):
            raise UsageError(
                f"the configuration has no field {field!r}{_hint(name, known, others)}"
            )
    read = _flag_values()
    argv = ["run.py", *arguments]
    config_flags.DEFINE_config_dict("config", config, flag_values=read, sys_argv=argv)
    if rest := _read(read, arguments):
        raise UsageError(f"unexpected argument {rest[0]!r}: arguments are flags, --name=value")
    if not is_task:
        return config
    if "config.train.steps" in given and "config.train.warmup_steps" not in given:
        config.train.warmup_steps = fitting_warmup(config.train.warmup_steps, config.train.steps)
    return Config.read(config.to_dict())


def _choose(config: ConfigDict, arguments: Sequence[str]) -> list[str]:
    """Replace data and model by those that flags name; return the other arguments."""
    read = _flag_values()
    flags.DEFINE_string("config.data.name", None, "name of the dataset", read)
    flags.DEFINE_string("config.architecture", None, "name of the model", read)
    rest = _read(read, arguments)
    name, architecture = (read[flag].value for flag in ("config.data.name", "config.architecture"))
    if name in DATASETS and name != config.data.name:
        kind = DATASETS[name].config
        config.data = as_config_dict(kind())
        for part in ("text", "literature"):  # which belonged to the other data
            if part in config:
                del config[part]
        if kind.is_shared is None:
            config.text = as_config_dict(TextPart())
    config.data.name = name or config.data.name
    models = TASKS[config.task].parts.models
    if architecture in models and architecture != config.architecture:
        before, config.model = config.model, as_config_dict(models[architecture]())
        config.model.max_length = before.max_length
    config.architecture = architecture or config.architecture
    return rest


def field_names(arguments: Sequence[str]) -> list[str]:
    """Return the names of the flags among arguments, as "config.seed"."""
    found = (re.match(r"--?([a-zA-Z][\w.]*)", argument) for argument in arguments)
    return [each[1] for each in found if each]


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
    parts = [
        "usage: python run.py [--mode=MODE] [--config=CONFIG] [--config.FIELD=VALUE] …",
        _section("modes", {mode: text for mode, (text, _) in MODES.items()}),
        _section("configurations", {path.stem: _card(path) for path in config_files()}),
        _section("flags", texts),
    ]
    for name in values.config or ():
        config = with_fields(load_config(name), ())
        texts = helps(config) if config.task in TASKS else {}
        if config.task in TASKS:
            texts["data.name"] = f"one of {', '.join(datasets_of(config.task))}"
        fields = flat(as_config_dict(config).to_dict() if config.task in TASKS else config)
        rows = {
            f"--config.{key}": f"{value!r}  {texts.get(key, '')}" for key, value in fields.items()
        }
        parts.append(_section(f"fields of {name}", rows))
    return "\n\n".join(parts)


def _card(path: Path) -> str:
    """Return the first line of the docstring of a file."""
    try:
        return (ast.get_docstring(ast.parse(path.read_bytes())) or "").partition("\n")[0]
    except SyntaxError as error:
        return f"cannot be read: {error}"


def _section(title: str, rows: Mapping[str, str]) -> str:
    width = max(map(len, rows))
    lines = (f"  {name:{width}}  {text}".rstrip() for name, text in rows.items())
    return "\n".join([f"{title}:", *lines])


def default_workdir(config: str) -> Path:
    """Return workdirs/NAME_tiny for NAME:tiny."""
    path, _, form = config.partition(":")
    return Path("workdirs", Path(path).stem + (f"_{form}" if form else ""))


def lines_as_they_come(stream: TextIO) -> Iterator[list[str]]:
    """Yield all lines that have arrived since the last time, so that they are answered together.

    A terminal shows a prompt. Bytes that are no UTF-8 become U+FFFD, and a byte order mark at the
    beginning is left out.
    """
    if stream.isatty():
        print("one input per line; end with Ctrl-D")
    rest, mark, ended = b"", codecs.BOM_UTF8, False
    while not ended:
        if stream.isatty():
            print("> ", end="", flush=True)
        received = stream.buffer.read1(2**16)  # as many bytes as a pipe holds
        ended = not received
        *lines, rest = (rest + received).split(b"\n")
        if ended and rest:
            lines = [rest]  # the last line may lack its end
        if lines:
            lines[0], mark = lines[0].removeprefix(mark), b""
            yield [line.removesuffix(b"\r").decode(errors="replace") for line in lines]

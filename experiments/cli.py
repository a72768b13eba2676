"""Command line: modes, flags, help, and one sentence for each mistake.

Nothing heavy is imported here: a typing error and `--help` are answered before jax and NumPy load.
"""

import ast
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from types import MappingProxyType
from typing import NamedTuple

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
from experiments.launch.slurm import SCRIPT, read_options, script_of
from experiments.plugin import import_plugin
from experiments.registry import TASK_PARTS, datasets_of
from experiments.workdir import CHANGEABLE, MESH, Workdir

MODES = {
    "train": "train a model or continue its run, then measure it; the default",
    "evaluate": "measure a trained model again",
    "predict": "answer each line of standard input: translate it, continue it, name its class, …",
    "explain": "draw and measure what a trained model attends to",
    "compare": "train several configurations on the same data, and compare scores and speed",
    "sweep": "train with several seeds or values of fields: mean and standard deviation",
    "prepare": "store the data of a configuration in the cache, as the first training does",
    "describe": "count parameters, cache and FLOPs of a model, plan its training, draw its masks",
    "benchmark": "measure time, memory and error of attention beside other libraries",
    "ledger": "write the results of all runs in workdirs/ as JSON and into the documents",
}
ANSWERS = ("generate", "translate")  # other names of the mode predict, which get a hint
USES = ("evaluate", "predict", "explain")  # modes that need a trained model
FORMATS = ("text", "json")
MAX_PORT = 65_535
MULTI_PROCESS_MODES = ("train", "evaluate")  # modes in which several processes compute one run
FOR_MODES = {  # modes that have a flag
    "split": ("evaluate", "explain"),
    "against": ("evaluate",),
    "format": ("predict",),
    "seeds": ("sweep",),
    "cluster": ("sweep",),
    "beam": ("prepare",),
    "profile": ("train",),
    "wandb": ("train", "sweep"),
    "coordinator": MULTI_PROCESS_MODES,
    "num_processes": MULTI_PROCESS_MODES,
    "process_id": MULTI_PROCESS_MODES,
    "sentence": ("explain",),
    "file": ("explain",),
    "gold": ("explain",),
    "gold_first": ("explain",),
    "layer": ("explain",),
    "head": ("explain",),
}
OF_DATA = ("split", "file", "gold")  # flags that need the data or the tokens of a run
# Modes that train several runs: how the names of their workdirs end.
SUFFIXES = {"compare": "", "sweep": "_sweep"}
DEFAULTS = {"benchmark": "benchmark", "ledger": "ledger"}
PRETRAINED = "pretrained"
# Name of a flag: its default and its help.
FLAGS = {
    "mode": ("train", "one of the modes above"),
    "workdir": (None, "folder of the run; alone, it continues or uses the run that it contains"),
    "cache": (".cache", "folder of generated data and compiled programs"),
    "split": (None, "with --mode=evaluate or explain: the one split that is used"),
    "against": (
        None,
        "with --mode=evaluate: another workdir, to compare BLEU with (paired bootstrap)",
    ),
    "wandb": (
        None,
        "with --mode=train or sweep: Weights & Biases project that takes the metrics too",
    ),
    "weights": (
        None,
        "with --mode=predict or explain: folder of a released checkpoint, in place of a run",
    ),
    "sentence": (None, "with --mode=explain: a sentence, in place of those of a split"),
    "file": (
        None,
        "with --mode=explain: a file of sentences, one a line, or of pairs with a tab between",
    ),
    "gold": (None, "with --file: word alignments of its pairs, one line for each, as 0-0 1-2 2p1"),
    "gold_first": (None, "with --gold: the number of the first word, 0 (the default) or 1"),
    "layer": (None, "with --mode=explain: the layer of the head that is drawn alone, from 1"),
    "head": (None, "with --mode=explain: the head that is drawn alone, from 1"),
    "format": (None, "with --mode=predict: text, or json with probabilities and alignments"),
    "seeds": (None, "with --mode=sweep: the seeds of the runs, as in 0,1,2"),
    "cluster": (
        None,
        "with --mode=sweep: train in jobs of submitit: local, slurm, or PATH.sbatch, a copy of the "
        "batch script of slurm with other options",
    ),
    "beam": (None, "with --mode=prepare: options of Apache Beam, as in --runner=DirectRunner"),
    "coordinator": (
        None,
        "with several processes: HOST:PORT, where process 0 listens; not needed by SLURM, Open MPI "
        "and Kubernetes",
    ),
    "num_processes": (None, "with --coordinator: their number; 1 for one process alone"),
    "process_id": (None, "with --coordinator: the number of this process, from 0"),
    "plugin": (None, "Python file or module that registers datasets, tasks and the like"),
}
CLUSTERS = ("local", "slurm", "PATH.sbatch")
PROFILE = "with --mode=train: record a trace of some steps in the folder profile of the workdir"
HELP = ("--help", "-help", "-h")


class Command(NamedTuple):
    """A parsed command line.

    Attributes:
        mode: one of `MODES`.
        config: the configuration, overrides applied.
        workdir: folder of the run.
        cache: folder of generated data and compiled programs, shared by runs.
        split: the one split to evaluate or to explain; None for the test splits.
        against: workdir of the run with which an evaluation is compared.
        is_of_run: whether the configuration was read from the workdir.
        weights: folder of a released checkpoint that is used in place of a run.
        format: of predictions, one of `FORMATS`.
        sentence: that is explained; None for sentences of a file or a split.
        file: of sentences or pairs that are explained.
        gold: word alignments of the pairs in the file.
        gold_first: number of the first word in them.
        layer: of the head that is drawn alone; None for the default.
        head: its number in the layer.
        runs: the configurations of several runs by name; `config` is the first one.
        beam: options of Apache Beam, which prepares the data.
        cluster: where submitit trains the runs, or the path of a batch script; None for here, one
            after another.
        profile: whether some steps are traced.
        wandb: project of Weights & Biases.
        coordinator: host and port of process 0, if several processes compute one run.
        num_processes: their number.
        process_id: of this one.
    """

    mode: str
    config: ConfigDict
    workdir: Path
    cache: Path
    split: str | None = None
    against: Path | None = None
    is_of_run: bool = False
    weights: Path | None = None
    format: str = FORMATS[0]
    sentence: str | None = None
    file: Path | None = None
    gold: Path | None = None
    gold_first: int | None = None
    layer: int | None = None
    head: int | None = None
    runs: Mapping[str, ConfigDict] = MappingProxyType({})
    beam: str | None = None
    cluster: str | None = None
    profile: bool = False
    wandb: str | None = None
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None


def parse(argv: Sequence[str]) -> Command:
    """Parse the command line.

    Without `--config`, the configuration is that of the run in `--workdir`, if it contains one.
    Overrides hold for each run of a comparison or a sweep.

    Args:
        argv: the name of the program and its arguments.

    Raises:
        UsageError: an unknown flag, mode, configuration or field, or a value of the wrong type.
        SystemExit: `--help`, after the help is printed.
    """
    program, *arguments = argv
    arguments = with_home(without_negation(arguments))
    for name in ("config", *FLAGS):
        if name != "seeds" and "" in values_of(name, arguments):
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
    if base.task in TASK_PARTS:
        plugin = last_of("plugin", arguments)
        base.update({"plugin": plugin} if plugin else {})
        choose_data(base, last_of("config.data.name", arguments))
    for argument in arguments:
        if flag_name(argument).startswith("config."):
            check_field(flag_name(argument), base)
    values = _read([program, *arguments], base)
    if mode in USES and not weights and workdir.config.exists():
        _check_training(mode, arguments, values.config, workdir)
    return Command(
        mode=values.mode,
        config=values.config,
        workdir=workdir.path,
        cache=Path(values.cache),
        split=values.split,
        against=None if values.against is None else Path(values.against),
        is_of_run=is_of_run,
        weights=None if values.weights is None else Path(values.weights),
        format=values.format or FORMATS[0],
        sentence=values.sentence,
        file=None if values.file is None else Path(values.file),
        gold=None if values.gold is None else Path(values.gold),
        gold_first=None if values.gold_first is None else int(values.gold_first),
        layer=_number("layer", values.layer),
        head=_number("head", values.head),
        beam=values.beam,
        coordinator=values.coordinator,
        num_processes=_number("num_processes", values.num_processes),
        process_id=_number("process_id", values.process_id, least=0),
        cluster=values.cluster,
        profile=values.profile,
        wandb=values.wandb,
    )


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
    """Parse the flags for each run of a comparison or a sweep.

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
    runs = expand(lambda name, flags: _parse_one(mode, [*rest, *flags], name).config, configs, axes)
    if len(runs) < 2 and mode == "compare":
        raise UsageError("--mode=compare needs --config twice or --grid.FIELD=VALUE,VALUE")
    if len(runs) < 2 and not axes:
        raise UsageError("--mode=sweep needs --seeds=0,1,2 or --grid.FIELD=VALUE,VALUE")
    workdir = Path(place or Path("workdirs", "+".join(configs) + SUFFIXES[mode]))
    command = _parse_one(mode, rest, names[0] if names else DEFAULT)
    return command._replace(config=next(iter(runs.values())), workdir=workdir, runs=runs)


def help_text(program: str, configs: Sequence[str] = ()) -> str:
    """Return the help: modes, configurations and flags, and the fields of the named configurations.

    Raises:
        UsageError: a configuration that cannot be loaded.
    """
    cards = {
        path.stem: (ast.get_docstring(ast.parse(path.read_bytes())) or "").partition("\n")[0]
        for path in config_files()
    }
    values = {
        name: f"{help} [{default}]" if default else help for name, (default, help) in FLAGS.items()
    }
    values["config"] = f"a configuration below, NAME:tiny for its tiny form, or a path [{DEFAULT}]"
    values["profile"] = PROFILE
    values["config.FIELD"] = "a value for a field; --help --config=CONFIG lists the fields"
    values["grid.FIELD"] = "with --mode=sweep or compare: values of a field, as in 1e-3,3e-3"
    parts = [
        f"usage: python {program} [--mode=MODE] [--config=CONFIG] [--config.FIELD=VALUE] …",
        _section("modes", MODES),
        _section("configurations", cards),
        _section("flags", {f"--{name}": text for name, text in values.items()}),
    ]
    for config in configs:
        loaded = load_config(config)
        texts = {}
        if loaded.task in TASK_PARTS:
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
    given["profile"] = "profile" if "profile" in map(flag_name, arguments) else None
    for name, modes in FOR_MODES.items():
        if given[name] is not None and mode not in modes:
            known = " and --mode=".join(modes)
            raise UsageError(f"--{name} is for --mode={known} alone, got --mode={mode}")
    for name in axis_flags(arguments):
        if mode not in SUFFIXES:
            modes = " and ".join(f"--mode={one}" for one in SUFFIXES)
            raise UsageError(f"--{name} is for {modes}, got --mode={mode}")
    if given["cluster"]:
        _check_cluster(given["cluster"])
    _check_processes(given)
    if given["weights"] and (
        mode not in ("predict", "explain") or (mode == "predict" and given["workdir"])
    ):
        raise UsageError(
            "--weights is for --mode=predict, without a --workdir, and for --mode=explain"
        )
    if given["weights"] and (name := next((x for x in OF_DATA if given[x]), "")):
        raise UsageError(f"--{name} is for a run: --weights has no data, and takes a --sentence")
    if given["format"]:
        with as_usage_errors():
            one_of("--format", given["format"], FORMATS)
    if given["gold_first"]:
        with as_usage_errors():
            one_of("--gold_first", given["gold_first"], ("0", "1"))
    if given["gold"] and not given["file"]:
        raise UsageError("--gold is for the pairs of a --file")
    if mode == "ledger" and given["workdir"]:
        raise UsageError("--mode=ledger lists all runs below --config.folder: it has no --workdir")
    if mode == "describe" and given["workdir"] and is_config_given:
        raise UsageError("--mode=describe takes a --config or a --workdir, got both")


def _check_cluster(given: str) -> None:
    """Raise a `UsageError` for a cluster that cannot be used, or a batch script with mistakes."""
    if not given.endswith(SCRIPT.suffix):
        with as_usage_errors():
            one_of("--cluster", given, CLUSTERS)
    if find_spec("submitit") is None:
        raise UsageError('--cluster needs an extra: pip install "attention[cluster]"')
    if given == "local":
        return
    if which("srun") is None:
        raise UsageError(f"--cluster={given} needs the command srun, which is not installed here")
    read_options(script_of(given))


def _check_processes(given: Mapping[str, str | None]) -> None:
    """Raise a `UsageError` for flags of several processes that are incomplete or wrong."""
    names = ("coordinator", "num_processes", "process_id")
    missing = [f"--{name}" for name in names if given[name] is None]
    if len(missing) == len(names) or (given["num_processes"] == "1" and len(missing) == 2):
        return
    if missing:
        flags = ", ".join(f"--{name}" for name in names)
        raise UsageError(f"{flags} belong together: {' and '.join(missing)} missing")
    host, _, port = given["coordinator"].rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= MAX_PORT:
        raise UsageError(
            f"--coordinator is HOST:PORT with a port from 1 to {MAX_PORT}, got "
            f"{given['coordinator']!r}"
        )
    number = _number("num_processes", given["num_processes"])
    process = _number("process_id", given["process_id"], least=0)
    if process >= number:
        raise UsageError(
            f"--process_id is from 0 to {number - 1} with --num_processes={number}, got {process}"
        )


def _number(name: str, given: str | None, least: int = 1) -> int | None:
    if given is not None and not (given.isdecimal() and int(given) >= least):
        raise UsageError(f"--{name} is a whole number from {least}, got {given!r}")
    return None if given is None else int(given)


def _default_workdir(config: str) -> Path:
    """Return workdirs/NAME_tiny for NAME:tiny."""
    path, _, form = config.partition(":")
    return Path("workdirs", Path(path).stem + (f"_{form}" if form else ""))


def _read(argv: Sequence[str], base: ConfigDict) -> flags.FlagValues:
    """Parse the flags, with those that override fields of `base`."""
    values = flags.FlagValues()
    for name, (default, text) in FLAGS.items():
        flags.DEFINE_string(name, default, text, flag_values=values)
    flags.DEFINE_boolean("profile", False, PROFILE, flag_values=values)
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

"""Files of configs by name or path, and plugins: files of the user that register on import."""

import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from ml_collections import ConfigDict

from experiments.config import Config
from experiments.errors import UsageError, nearest
from experiments.registry import TASKS

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = REPOSITORY / "configs"
DEFAULT = "toy_translation"  # configuration of a command without --config


def load_config(name: str) -> ConfigDict:
    """Load a configuration by its name, such as "toy_translation:tiny", or by the path of its file.

    Fields that the file of a task leaves out have their defaults.

    Raises:
        UsageError: there is no such file, it is no Python, or its `get_config` returns no config.
    """
    stem, *form = name.split(":", 1)
    is_name = "/" not in stem and not Path(stem).suffix
    paths = [CONFIGS / f"{stem}.py"] if is_name else [Path(stem), REPOSITORY / stem]
    path = paths[0] if paths[0].is_file() else paths[-1]
    if not path.is_file():
        known = map(str, Path(stem).parent.glob("*.py"))
        hint = nearest(stem, [path.stem for path in config_files()] if is_name else [*known])
        raise UsageError(f"there is no configuration {stem!r}{hint or '; --help lists all'}")
    try:
        module = import_file(path)
    except (SyntaxError, UnicodeDecodeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"the configuration {path} cannot be read: {reason}") from error
    config = module.get_config(*form) if hasattr(module, "get_config") else None
    if not isinstance(config, dict | ConfigDict):
        raise UsageError(f"{path} needs a function get_config that returns a ConfigDict or a dict")
    tree = ConfigDict(config).to_dict()
    return ConfigDict(Config.read(tree).to_dict() if tree.get("task") in TASKS else tree)


def config_files(folder: Path = CONFIGS) -> list[Path]:
    """List the files of a folder that define a configuration."""
    files = sorted(folder.glob("*.py"))
    return [path for path in files if b"\ndef get_config(" in path.read_bytes()]


def import_plugin(name: str) -> None:
    """Import a plugin, the path of a file or the dotted name of a module, once in this process.

    Raises:
        UsageError: it is missing. Errors of its code keep their traceback.
    """
    is_file = name.endswith(".py") or "/" in name
    sentence = f"--plugin={name} is not there: name a Python file or a module"
    if is_file and not Path(name).is_file():
        raise UsageError(sentence)
    try:
        import_file(Path(name)) if is_file else import_module(name)
    except ModuleNotFoundError as error:
        if is_file or not f"{name}.".startswith(f"{error.name}."):
            raise  # a module that the plugin needs
        raise UsageError(sentence) from error


def is_imported(name: str) -> bool:
    """Return whether this process has imported a plugin of that name, maybe in another folder."""
    return Path(name).name in {Path(key).name for key in sys.modules}


def import_file(path: Path) -> ModuleType:
    """Execute a Python file once in this process, and return its module."""
    key = str(path.resolve())
    if key not in sys.modules:
        loader = SourceFileLoader(key, key)
        module = module_from_spec(spec_from_loader(key, loader))
        sys.modules[key] = module  # where dataclasses find the types of their fields
        loader.exec_module(module)
    return sys.modules[key]

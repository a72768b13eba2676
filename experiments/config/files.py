"""Files of configs by name or path, and plugins: files of the user that register on import."""

import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from ml_collections import ConfigDict

from experiments.errors import UsageError, nearest

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT = "toy_translation"  # configuration of a command without --config


def load_config(name: str) -> ConfigDict:
    """Load a configuration by its name, such as "toy_translation:tiny", or by the path of its file.

    Raises:
        UsageError: there is no such file, it is no Python, or its `get_config` returns no config.
    """
    path, form = _config_path(name)
    try:
        module = import_file(path)
    except (SyntaxError, UnicodeDecodeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"the configuration {path} cannot be read: {reason}") from error
    if not hasattr(module, "get_config"):
        raise UsageError(f"the configuration {path} has no function get_config")
    config = module.get_config(*form)
    if isinstance(config, dict):
        config = ConfigDict(config)
    if not isinstance(config, ConfigDict):
        kind = type(config).__name__
        raise UsageError(f"get_config of {path} must return a ConfigDict or a dict, got a {kind}")
    return config


def _config_path(name: str) -> tuple[Path, list[str]]:
    """Return the file of a configuration, and the form after the colon if there is one."""
    stem, *form = name.split(":", 1)
    if "/" not in stem and not Path(stem).suffix:
        known = {path.stem: path for path in config_files()}
        if stem in known:
            return known[stem], form
        hint = nearest(stem, known)
    else:
        for path in (Path(stem), REPOSITORY / stem):
            if path.is_file():
                return path, form
        hint = nearest(stem, [str(path) for path in Path(stem).parent.glob("*.py")])
    raise UsageError(f"there is no configuration {stem!r}{hint or '; --help lists all'}")


def config_files(folder: Path = REPOSITORY / "configs") -> list[Path]:
    """List the files of a folder that define a configuration."""
    files = sorted(folder.glob("*.py"))
    return [path for path in files if b"\ndef get_config(" in path.read_bytes()]


def import_plugin(name: str) -> None:
    """Import a plugin, unless this process has imported it before.

    Args:
        name: path of a Python file, or dotted name of a module.

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
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[key]
            raise
    return sys.modules[key]

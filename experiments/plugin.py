"""Plugins: files or modules of the user that register datasets, tasks and the like on import."""

import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from experiments.errors import UsageError

_IMPORTED: set[str] = set()  # plugins of this process: paths, and names of modules


def import_plugin(name: str) -> None:
    """Import a plugin, unless this process has imported it before.

    Args:
        name: path of a Python file, or dotted name of a module.

    Raises:
        UsageError: it is missing, its import fails, or a name that it registers is taken.
    """
    is_file = name.endswith(".py") or "/" in name
    missing = UsageError(f"--plugin={name} is not there: name a Python file or a module")
    if is_file and not Path(name).is_file():
        raise missing
    key = _key(Path(name)) if is_file else name
    if key in _IMPORTED:
        return
    try:
        import_file(Path(name)) if is_file else import_module(name)
    except Exception as error:  # whatever the code of a person raises
        if not is_file and f"{name}.".startswith(f"{getattr(error, 'name', None)}."):
            raise missing from error
        is_plain = isinstance(error, ValueError | UsageError)
        reason = error if is_plain else f"{type(error).__name__}: {error}"
        raise UsageError(f"--plugin={name} cannot be imported: {reason}") from error
    _IMPORTED.add(key)


def is_imported(name: str) -> bool:
    """Return whether this process has imported a plugin of that name, maybe in another folder."""
    return Path(name).name in {Path(key).name for key in _IMPORTED}


def import_file(path: Path) -> ModuleType:
    """Execute a Python file and return its module; a plugin is not executed again."""
    key = _key(path)
    if key in _IMPORTED:
        return sys.modules[key]
    loader = SourceFileLoader(key, str(path))
    module = module_from_spec(spec_from_loader(key, loader))
    sys.modules[key] = module  # where dataclasses find the types of their fields
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[key]
        raise
    return module


def _key(path: Path) -> str:
    return str(path.resolve())

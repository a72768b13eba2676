"""Files of a checkpoint: tensors read one by one, and written in shards.

Nothing but safetensors and JSON is read, neither of which can contain code.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
OURS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")


@dataclass(frozen=True)
class Tensor:
    """A tensor in a file, not read yet; `dtype` is a name of safetensors, such as "BF16"."""

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: str

    def read(self, slices: tuple[slice, ...] = ()) -> np.ndarray:
        """Return the tensor, or the part of it with these indices.

        The file is read without a memory map: its pages would count as memory of the process.
        """
        with safe_open(self.path, framework="numpy", backend="pread") as file:
            return file.get_slice(self.name)[slices] if slices else file.get_tensor(self.name)


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a file that contains something else.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path.parent} contains no {path.name}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must contain a JSON object, got {type(content).__name__}")
    return content


def list_tensors(folder: Path, rename: Callable[[str], str]) -> dict[str, Tensor]:
    """Return the tensors of a folder by their new names; reads the headers of its files.

    Args:
        folder: contains `model.safetensors`, or an index and the files that it names. A tensor that
            the index assigns to another file is not read from this one.
        rename: from the name of a tensor in a file to the name that rules use.

    Raises:
        FileNotFoundError: no such files.
        ValueError: a damaged index or file, or two tensors with the same new name.
    """
    names, assigned = [SINGLE], {}
    if not (folder / SINGLE).is_file() and (folder / INDEX).is_file():
        assigned = read_json(folder / INDEX).get("weight_map")
        names = list(assigned.values()) if isinstance(assigned, dict) else [None]
        if not all(isinstance(name, str) for name in names):
            raise ValueError(f"{folder / INDEX} must map names of tensors to names of files")
    tensors = {}
    for name in sorted(set(names)):
        if Path(name).name != name:
            raise ValueError(f"{folder / INDEX} names {name!r}, which is not in its folder")
        if not (folder / name).is_file():
            hint = "" if name != SINGLE else f" or {INDEX}; files in other formats are not read"
            raise FileNotFoundError(f"{folder} contains no {name}{hint}")
        for tensor in _tensors_of(folder / name):
            if assigned.get(tensor.name, name) != name:
                continue
            if tensors.setdefault(rename(tensor.name), tensor) is not tensor:
                raise ValueError(f"{folder} contains the tensor {rename(tensor.name)!r} twice")
    return tensors


def _tensors_of(path: Path) -> list[Tensor]:
    try:
        with safe_open(path, framework="numpy", backend="pread") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return [
                Tensor(name, path, tuple(each.get_shape()), each.get_dtype())
                for name, each in slices.items()
            ]
    except Exception as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None


def write_checkpoint(
    folder: Path,
    config: str,
    sizes: Mapping[str, int],
    read: Callable[[str], np.ndarray],
    max_bytes: int,
) -> None:
    """Write config.json and tensors: `model.safetensors`, or several files with an index.

    The files replace those of an earlier checkpoint when all are written; if that fails, the
    earlier checkpoint remains. Other files of the folder are kept.

    The numbers of bytes `sizes` are in the order of the files, and `read` is called once for each
    name. A file has at most `max_bytes`, unless one tensor is larger.
    """
    index, shards, total = {}, [[]], 0
    for name, size in sizes.items():
        if shards[-1] and total + size > max_bytes:
            shards.append([])
            total = 0
        shards[-1].append(name)
        total += size
    with TemporaryDirectory(prefix=".saving-", dir=folder) as name:
        temporary = Path(name)
        for number, names in enumerate(shards, start=1):
            single = len(shards) == 1
            file = SINGLE if single else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            index |= dict.fromkeys(names, file)
            tensors = {name: np.asarray(read(name), order="C") for name in names}
            save_file(tensors, temporary / file, metadata={"format": "pt"})
        if len(shards) > 1:
            content = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": index}
            (temporary / INDEX).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        (temporary / "config.json").write_text(config, encoding="utf-8")
        written = sorted(path.name for path in temporary.iterdir())
        for file in written:
            os.replace(temporary / file, folder / file)
    for old in list(folder.iterdir()):
        if OURS.fullmatch(old.name) and old.name not in written:
            old.unlink()

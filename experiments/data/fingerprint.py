"""Fingerprints of texts, by which a run recognizes the data that it has read."""

import hashlib
from collections.abc import Iterable
from pathlib import Path


def fingerprint(lines: Iterable[str]) -> str:
    """Return sixteen hexadecimal digits of the SHA-256 of lines."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()[:16]


def name_of_files(files: Iterable[Path], *options: object) -> str:
    """Name the text of files by their path, size and time, and by what is done with it."""
    stats = [(path.resolve(), path.stat()) for path in sorted(files)]
    return repr([*options, *((str(path), at.st_size, at.st_mtime_ns) for path, at in stats)])

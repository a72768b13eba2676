"""Fingerprints of texts, by which a run recognizes the data that it has read."""

import hashlib
from collections.abc import Iterable


def fingerprint(lines: Iterable[str]) -> str:
    """Return sixteen hexadecimal digits of the SHA-256 of lines."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()[:16]

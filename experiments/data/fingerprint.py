"""Fingerprints of texts, by which a run knows again what it has read."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from experiments.data.pairs import SentencePair


def fingerprint(lines: Iterable[str]) -> str:
    """Sixteen hexadecimal digits of the SHA-256 of the lines."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()[:16]


def of_splits(splits: Mapping[str, Sequence[SentencePair]]) -> dict[str, str]:
    """The fingerprint of each split, of both sides of its pairs."""
    return {
        name: fingerprint(f"{pair.source}\t{pair.target}" for pair in pairs)
        for name, pairs in splits.items()
    }

"""What tells a text from others, in a few letters."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from experiments.data.pairs import SentencePair


def fingerprint(lines: Iterable[str]) -> str:
    """That of equal lines is equal."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()[:16]


def of_splits(splits: Mapping[str, Sequence[SentencePair]]) -> dict[str, str]:
    """Of both sides of the pairs of each split."""
    return {
        name: fingerprint(f"{pair.source}\t{pair.target}" for pair in pairs)
        for name, pairs in splits.items()
    }

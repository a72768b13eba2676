"""Whether a text is the one that a run was measured on."""

import hashlib
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from experiments.data.pairs import SentencePair
from experiments.errors import UsageError
from experiments.workdir import Workdir


def of_pairs(pairs: Sequence[SentencePair]) -> str:
    """What tells sentences from others: of two runs it is the same where their sentences are."""
    text = "\n".join(f"{pair.source}\t{pair.target}" for pair in pairs)
    return _digest(text.encode())


def of_batches(batches: Sequence[object]) -> str:
    """What tells batches of ids from others."""
    return _digest(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(batches)))


def check_text(workdir: Workdir, texts: Mapping[str, str]) -> None:
    """Finds that splits hold what a run was measured on, as far as it was.

    Args:
        workdir: of the run.
        texts: fingerprints of splits, by name.

    Raises:
        UsageError: another text, as another folder of the same form has it.
    """
    before = workdir.load_results()["splits"] if workdir.results.exists() else {}
    for split, text in texts.items():
        if before.get(split, {}).get("text", text) != text:
            raise UsageError(
                f"the {split} split is another text than {workdir.path} was measured on: name "
                f"where that is, or remove {workdir.results}"
            )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]

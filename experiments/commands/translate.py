"""Translate each line of standard input."""

import sys
from collections.abc import Iterable
from pathlib import Path

from experiments.config import Config
from experiments.registry import TASKS
from experiments.training.session import restore
from experiments.workdir import Workdir


def translate(config: Config, workdir: Workdir, cache: Path, groups: Iterable[list[str]]) -> int:
    """Translate sentences as they come, line for line; an empty one has an empty translation.

    With `decoding.details`, a line is JSON: the source tokens, and the n best translations.

    Args:
        config: of the run.
        workdir: of the run.
        cache: where generated data is kept.
        groups: source sentences; those of a group are translated together.

    Returns:
        Number of lines that could not be translated; each has a message on standard error.
    """
    task = TASKS[config.task].load(config, workdir, cache)
    state = restore(workdir, task).state
    number = failed = 0
    for group in groups:
        answers, refused = task.answers(state, group)
        print(*answers, sep="\n", flush=True)
        for place, error in refused.items():
            print(f"line {number + place + 1}: {error}", file=sys.stderr, flush=True)
        number += len(group)
        failed += len(refused)
    return failed

"""Continue each line of standard input."""

import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from experiments.config import Config
from experiments.registry import TASKS
from experiments.training.session import restore
from experiments.workdir import Workdir


def generate(config: Config, workdir: Workdir, cache: Path, groups: Iterable[list[str]]) -> int:
    """Continue each line, as `config.decoding` describes it, and print each token as it comes.

    Args:
        config: of the run.
        workdir: of the run.
        cache: where generated data is kept.
        groups: prompts, in groups as they come.

    Returns:
        Number of lines that could not be read; each has a message on standard error.
    """
    task = TASKS[config.task].load(config, workdir, cache)
    state = restore(workdir, task).state
    failed = 0
    for number, line in enumerate(chain.from_iterable(groups), start=1):
        try:
            for piece in task.continuation(state, line):
                print(piece, end="", flush=True)
        except ValueError as error:
            failed += 1
            print(f"line {number}: {error}", file=sys.stderr, flush=True)
        print(flush=True)
    return failed

"""Answer each line of standard input with a trained model."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.config import Config
from experiments.tasks.prediction import show
from experiments.trained import Run
from experiments.workdir import Workdir

FEW_STEPS = 100  # of the tiny form of a config


def predict(
    config: Config, workdir: Workdir, cache: Path, groups: Iterable[Sequence[str]], form: str
) -> int:
    """Answer lines as they come; those of a group are answered together.

    Args:
        config: of the run.
        workdir: of the run.
        cache: where generated data is kept.
        groups: lines.
        form: of the output, "text" or "json".

    Returns:
        Number of lines without an answer; each has a message on standard error.
    """
    run = Run.load(workdir, cache, config)
    step = int(run.state.step)
    what = ", a smoke test: its answers mean nothing" if step < FEW_STEPS else ""
    print(f"{workdir.path}: {step:,} steps of training{what}", file=sys.stderr, flush=True)
    return show((run.predict(lines) for lines in groups), form)

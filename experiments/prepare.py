"""Prepare the data of a config: its text, tokens and ids, as a training reads them."""

from importlib.util import find_spec
from pathlib import Path

from experiments.config import Config
from experiments.errors import UsageError
from experiments.registry import TASKS
from experiments.workdir import Workdir


def prepare(config: Config, workdir: Workdir, cache: Path, *, beam: str | None = None) -> None:
    """Store the data of a config in `cache`, where it is stored anyway by the first training.

    Args:
        config: of the run.
        workdir: of the run; see `Task.prepare`.
        cache: folder of prepared data.
        beam: options of Apache Beam, separated by blanks, whose workers compute the ids; this
            process computes them if None.

    Raises:
        UsageError: data that cannot be read or learned from, or that does not fit; no Beam.
    """
    cache, map_function = cache.absolute(), map  # workers of Beam may be in other folders
    if beam is not None:
        if find_spec("apache_beam") is None:
            raise UsageError('--beam needs an extra: pip install ".[prepare]"')
        from experiments.data.beam import BeamMap

        map_function = BeamMap(cache / "ids", beam.split())
    print(f"reading the {config.data.name} data")
    task = TASKS[config.task].prepare(config, cache, workdir, map_function)
    for split in task.known_splits:
        print(f"{split}: {len(task.ids(split)):,} examples")
    print(f"{cache} contains the prepared data")

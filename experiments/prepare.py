"""Prepare the data of a config: its text, tokens and ids, as a training reads them."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from experiments.config import Config
from experiments.errors import UsageError
from experiments.files import temporary_folder, write_whole
from experiments.registry import TASKS
from experiments.workdir import Workdir

Arrays = tuple[np.ndarray, ...]


def prepare(config: Config, workdir: Workdir, cache: Path, *, beam: str | None = None) -> None:
    """Store the data of a config in `cache`, where it is stored anyway by the first training.

    With `beam`, options separated by blanks, workers of Apache Beam compute the ids.

    Raises:
        UsageError: data that cannot be read or learned from, or that does not fit; no Beam.
    """
    if beam is not None and find_spec("apache_beam") is None:
        raise UsageError('--beam needs an extra: pip install "attention-jax[prepare]"')
    cache = cache.absolute()  # workers of Beam may be in other folders
    map_function = map if beam is None else partial(beam_map, cache / "ids", beam.split())
    print(f"reading the {config.data.name} data")
    task = TASKS[config.task].prepare(config, cache, workdir, map_function)
    for split in task.known_splits:
        print(f"{split}: {len(task.ids(split)):,} examples")
    print(f"{cache} contains the prepared data")


def beam_map(
    folder: Path,
    options: Sequence[str],
    function: Callable[[int], Arrays],
    items: Iterable[int],
) -> Iterator[Arrays]:
    """Yield `function(item)` of each item, computed by Apache Beam: the extra `[prepare]`.

    Args:
        folder: in which the workers write the results; all of them reach it by this path.
        options: of Beam, as "--runner=FlinkRunner".
        function: returns arrays.
        items: all different.
    """
    import apache_beam
    from apache_beam.options.pipeline_options import PipelineOptions

    items = [*items]
    with temporary_folder(folder) as temporary:
        with apache_beam.Pipeline(options=PipelineOptions([*options])) as pipeline:
            chosen = pipeline | apache_beam.Create(items) | apache_beam.Reshuffle()
            _ = chosen | apache_beam.Map(partial(_write, function, temporary))
        for item in items:
            with np.load(temporary / str(item)) as result:
                yield (*result.values(),)


def _write(function: Callable[[int], Arrays], folder: Path, item: int) -> None:
    """Write a result; Beam may compute it twice at once."""
    content = io.BytesIO()
    np.savez(content, *function(item))
    write_whole(folder / str(item), content.getvalue())

"""Preparation of data on several machines, by Apache Beam: the extra `[prepare]`."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions

from experiments.files import PART, remove_abandoned, write_whole

Arrays = tuple[np.ndarray, ...]


class BeamMap:
    """`map` in a Beam pipeline, for functions that return arrays.

    The workers write the results as files of a temporary folder, from which they are read one after
    another, in order; so no machine holds more than one of them.
    """

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        """Choose where the pipeline runs.

        Args:
            folder: in which the workers write; all of them reach it by this path.
            options: of Beam, as "--runner=FlinkRunner".
        """
        self._folder, self._options = folder.absolute(), options

    def __call__(self, function: Callable[[int], Arrays], items: Iterable[int]) -> Iterator[Arrays]:
        """Run the pipeline, then yield the result of each item."""
        items = [*items]
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_abandoned(self._folder)
        with TemporaryDirectory(dir=self._folder, suffix=PART) as temporary:
            with beam.Pipeline(options=PipelineOptions([*self._options])) as pipeline:
                chosen = pipeline | beam.Create(items) | beam.Reshuffle()
                _ = chosen | beam.Map(partial(_write, function, Path(temporary)))
            for item in items:
                with np.load(Path(temporary) / str(item)) as result:
                    yield (*result.values(),)


def _write(function: Callable[[int], Arrays], folder: Path, item: int) -> None:
    """Write a result; Beam may compute it twice at once."""
    content = io.BytesIO()
    np.savez(content, *function(item))
    write_whole(folder / str(item), content.getvalue())

"""Splits of the data that a config names."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.data.pairs import SentencePair
from experiments.data.store import ImageStore, MapFunction, TextStore, store_text
from experiments.errors import as_usage_errors, one_of
from experiments.registry import DATASETS


def store_split(config: Any, split: str, cache: Path) -> TextStore | ImageStore:  # noqa: ANN401 - any dataset
    """Return one split of the data of a config, stored in `cache`; images are in memory.

    Raises:
        ValueError: a split that the source does not have, or images of another range.
    """
    source = DATASETS[config.name].source
    one_of("split", split, source.splits)

    def load() -> Iterator[SentencePair]:
        pairs = source.load(config, split, cache)
        return (pair._replace(target=str(pair.target)) for pair in pairs)  # a class may be a number

    if source.has_images:
        images = ImageStore(load())
        for image, *_ in images:  # `read_image` reads files so
            low, high = image.min(), image.max()
            if not 0 <= low <= high <= 1:
                raise ValueError(
                    f"the images of data.name={config.name} must have values from 0 to 1, as those "
                    f"of --mode=predict have, got {low} to {high}"
                )
        return images
    name = source.name and f"{config.name} {source.name(config)} {split}"
    return store_text(cache, load, name)


class Splits(dict[str, TextStore | ImageStore]):
    """Splits of the data of a config by name; each is read when it is first used."""

    def __init__(
        self,
        config: Any,  # noqa: ANN401 - any dataset
        cache: Path,
        *,
        has_targets: bool = True,
        map_function: MapFunction = map,
    ) -> None:
        """Read nothing yet.

        Args:
            config: `config.data`.
            cache: folder of prepared data.
            has_targets: whether the task reads targets; otherwise a dataset may lack them.
            map_function: as in `store_ids`, for the ids of the splits.
        """
        super().__init__()
        self.cache, self.map_function = cache, map_function
        lacks = not has_targets and DATASETS[config.name].source.may_lack_target
        self._config = replace(config, target="") if lacks else config

    def __missing__(self, split: str) -> TextStore | ImageStore:
        """Read a split.

        Raises:
            UsageError: data that cannot be read.
        """
        with as_usage_errors():
            self[split] = store_split(self._config, split, self.cache)
        return self[split]

"""A source of examples, what tasks need to know of it, and its splits."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.data.examples import SentencePair
from experiments.data.store import ImageStore, MapFunction, TextStore, store_text
from experiments.data.tokenizers import Text, Words
from experiments.errors import as_usage_errors, one_of
from experiments.registry import DATASETS

EVERY_WORD = Words()


@dataclass(frozen=True)
class Source:
    """A dataset that serves every task of a config.

    Attributes:
        load: a split of it, from (`config.data`, name of the split, where generated data is kept);
            it may be read as it is needed.
        tests: the splits that a trained model is measured on.
        text: how its text becomes tokens and back.
        has_phenomena: whether its test split is of sentences that `by_phenomenon` knows.
        is_running: whether its examples are the parts of one text.
        may_split: whether a text that is longer than the model reads may become several examples;
            of data without targets.
        has_images: whether the source of an example is an image `[height, width, channels]`,
            from 0 (black) to 1 (white).
        may_lack_target: whether `config.target=""` loads examples without a target.
        name: names the text that `config.data` asks for, if that text never changes.
    """

    load: Callable[[Any, str, Path], Iterable[SentencePair]]
    tests: tuple[str, ...] = ("test",)
    text: Text = EVERY_WORD
    has_phenomena: bool = False
    is_running: bool = False
    may_split: bool = False
    has_images: bool = False
    may_lack_target: bool = False
    name: Callable[[Any], str] | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """All of its splits."""
        return ("train", "validation", *self.tests)


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
        """Read a split; its text is stored in `cache`, its images are in memory.

        Raises:
            UsageError: data that cannot be read, or a split that the source does not have.
        """
        config = self._config
        source = DATASETS[config.name].source

        def load() -> Iterator[SentencePair]:
            pairs = source.load(config, split, self.cache)
            return (pair._replace(target=str(pair.target)) for pair in pairs)  # or a number

        with as_usage_errors():
            one_of("split", split, source.splits)
            if source.has_images:
                self[split] = ImageStore(load())
                _check_range(config.name, self[split])
            else:
                name = source.name and f"{config.name} {source.name(config)} {split}"
                self[split] = store_text(self.cache, load, name)
        return self[split]


def _check_range(name: str, images: ImageStore) -> None:
    """Raise a ValueError for images of another range than those of `--mode=predict`."""
    for image, *_ in images:
        low, high = image.min(), image.max()
        if not 0 <= low <= high <= 1:
            raise ValueError(
                f"the images of data.name={name} must have values from 0 to 1, got {low} to {high}"
            )

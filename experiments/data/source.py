"""Sources of examples, and their splits, which are prepared on disk.

Text is stored for random access, ids and lengths as memory-mapped arrays. Files are named after
their content, so they are written once and are never out of date. Neither writing nor reading holds
more than some thousand examples in memory.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from experiments.data.tokenizers import (
    EncodedPair,
    SentencePair,
    Text,
    Tokenizers,
    Words,
    fingerprint,
)
from experiments.errors import as_usage_errors, one_of
from experiments.files import make_folder, publish, temporary_folder, write_whole
from experiments.registry import DATASETS

CHUNK = 4_096  # examples that are read at once
FILES = "ids", "ends", "lengths"

EVERY_WORD = Words()
MapFunction = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]  # such as `map`


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


class Splits(dict[str, "TextStore | ImageStore"]):
    """Splits of the data of a config by name; each is read when it is first used."""

    def __init__(
        self,
        config: Any,  # noqa: ANN401 - any dataset
        cache: Path,
        *,
        has_targets: bool = True,
        map_function: MapFunction = map,
    ) -> None:
        """Take `config.data` and the folder of prepared data; nothing is read yet.

        A task that reads no targets takes data that lack them. `map_function` is for `store_ids`.
        """
        super().__init__()
        self.cache, self.map_function = cache, map_function
        lacks = not has_targets and DATASETS[config.name].source.may_lack_target
        self._config = replace(config, target="") if lacks else config

    def __missing__(self, split: str) -> "TextStore | ImageStore":
        """Read a split; its text is stored in `cache`, its images are in memory.

        Raises:
            UsageError: data that cannot be read, or a split that the source does not have.
        """
        config, source = self._config, DATASETS[self._config.name].source

        def load() -> Iterator[SentencePair]:
            pairs = source.load(config, split, self.cache)
            return (pair._replace(target=str(pair.target)) for pair in pairs)  # or a number

        with as_usage_errors():
            one_of("split", split, ("train", "validation", *source.tests))
            if source.has_images:
                self[split] = ImageStore(load())
                for image, *_ in self[split]:  # of the range of those of `--mode=predict`
                    if not 0 <= image.min() <= image.max() <= 1:
                        raise ValueError(f"images of {config.name} have values outside [0, 1]")
            else:
                name = source.name and f"{config.name} {source.name(config)} {split}"
                self[split] = store_text(self.cache, load, name)
        return self[split]


class TextStore(Sequence[SentencePair]):
    """Sentence pairs in an array_record file, whose name is a hash of them."""

    def __init__(self, path: Path) -> None:
        """Take the path of a file that `store_text` wrote."""
        self.path, self.fingerprint = path, path.stem

    def __len__(self) -> int:
        return ArrayRecordReader(str(self.path)).num_records()

    def __getitem__(self, index: int | slice) -> SentencePair | list[SentencePair]:
        """One pair, or the pairs of a slice."""
        if isinstance(index, slice):
            return self.take(range(len(self))[index])
        return self.take([range(len(self))[index]])[0]

    def take(self, indices: Iterable[int]) -> list[SentencePair]:
        """The pairs of these numbers."""
        records = ArrayRecordReader(str(self.path)).read([*indices])
        return [SentencePair(*json.loads(record)) for record in records]

    def __iter__(self) -> Iterator[SentencePair]:
        """Every pair, read in chunks."""
        for start in range(0, len(self), CHUNK):
            yield from self[start : start + CHUNK]


class ImageStore(list[SentencePair]):
    """Images and their classes, in memory."""

    @property
    def fingerprint(self) -> str:
        """Hash of the images and classes."""
        return fingerprint(part for pair in self for part in (pair.source.tobytes().hex(), pair[1]))


class IdStore(Sequence[EncodedPair]):
    """Ids of sentence pairs, or of their sources alone, in memory-mapped files.

    Attributes:
        path: the folder; its name depends on the text and on the tokenizers.
        ids: of all pairs, one side after the other.
        ends: index in `ids` where each side ends: `[pairs, sides]`.
        lengths: positions of each side, ends included: `[pairs, sides]`.
    """

    def __init__(self, folder: Path, sides: int) -> None:
        """Open a folder that `store_ids` wrote."""
        self.path = folder
        self.ids = np.asarray(np.memmap(folder / "ids", np.int32, "r"))
        self.ends = np.asarray(np.memmap(folder / "ends", np.int64, "r")).reshape(-1, sides)
        self.lengths = np.asarray(np.memmap(folder / "lengths", np.int32, "r")).reshape(-1, sides)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> EncodedPair:
        """The ids of a pair."""
        ends = self.ends[index]
        begins = ends - self.lengths[index] + 1
        return EncodedPair(*map(self.ids.__getitem__, map(slice, begins, ends)))


def store_text(
    cache: Path, read: Callable[[], Iterable[SentencePair]], name: str | None = None
) -> TextStore:
    """Write sentence pairs, if the same are not stored yet, and open them.

    Args:
        cache: folder of prepared data.
        read: returns the pairs, which are read once.
        name: of data that never changes; if it is stored, it is not read again.
    """
    folder = cache / "text"
    known = folder / f"{fingerprint([name])}.name" if name else None
    if known and known.exists() and (path := folder / known.read_text()).exists():
        return TextStore(path)
    with temporary_folder(folder) as temporary:
        part, content = temporary / "records", hashlib.sha256()
        with closing(ArrayRecordWriter(str(part), "group_size:1,uncompressed")) as writer:
            for pair in read():
                record = json.dumps(pair).encode()
                content.update(record)
                writer.write(record)
        path = folder / f"{content.hexdigest()[:16]}.array_record"
        publish(part, path)
    if known:
        write_whole(known, path.name)
    return TextStore(path)


def store_ids(
    cache: Path,
    texts: TextStore,
    tokenizers: Tokenizers,
    max_ids: int | None = None,
    map_function: MapFunction = map,
) -> IdStore:
    """Write the ids of sentence pairs, if they are not stored yet, and open them.

    Args:
        cache: folder of prepared data.
        texts: the pairs.
        tokenizers: of their sides; an unknown word is a ValueError.
        max_ids: of an example, if not None; the rest of a longer source becomes more examples.
        map_function: calls a function for each of some items, and returns the results in their
            order; `experiments.prepare.beam_map` uses several machines.
    """
    if not len(texts):
        raise ValueError("it has no example")
    known = [*filter(None, tokenizers)]
    name = f"{texts.path.stem}.{fingerprint(map(repr, known))}.{max_ids or 'whole'}"
    folder = cache / "ids" / name
    if not (folder / FILES[-1]).exists():
        make_folder(folder)
        encode, end = partial(_encoded, texts, tokenizers, max_ids), 0
        with temporary_folder(folder.parent) as temporary:
            parts = [temporary / file for file in FILES]
            for ids, sizes in map_function(encode, range(0, len(texts), CHUNK)):
                ends = end + np.cumsum(sizes, dtype=np.int64)
                end += len(ids)
                for part, array in zip(parts, (ids, ends, sizes + 1), strict=True):
                    with part.open("ab") as file:
                        file.write(array)
            for part in parts:
                publish(part, folder / part.name)
    return IdStore(folder, len(known))


def _encoded(
    texts: TextStore, tokenizers: Tokenizers, max_ids: int | None, start: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of a chunk of pairs, and the number of ids of each side."""
    encoded, num_sides = [], len([*filter(None, tokenizers)])
    for pair in texts[start : start + CHUNK]:
        sides = tokenizers.encode(pair)[:num_sides]
        if max_ids:  # of sources alone
            (ids,) = sides
            sides = [ids[first : first + max_ids] for first in range(0, len(ids), max_ids)]
        encoded += [np.array(ids, np.int32) for ids in sides]
    sizes = np.array([*map(len, encoded)], np.int32)
    return np.concatenate([np.zeros(0, np.int32), *encoded]), sizes

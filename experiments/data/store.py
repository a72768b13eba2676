"""Prepared data on disk: text by random access, ids and lengths as memory-mapped arrays.

A store is named after its content, so that it is written once and is never out of date. Neither
writing nor reading holds more than some thousand examples in memory.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from experiments.data.examples import EncodedPair, SentencePair, fingerprint
from experiments.data.tokenizers import Tokenizers
from experiments.files import PART, publish, remove_abandoned, write_whole

CHUNK = 4_096  # examples that are read at once

MapFunction = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]  # such as `map`


class TextStore(Sequence[SentencePair]):
    """Sentence pairs in an array_record file, which is opened when a pair is read."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        """Take the path of a file that `store_text` wrote, and a hash of its pairs."""
        self.path = path
        self.fingerprint = fingerprint

    def __reduce__(self) -> tuple[type["TextStore"], tuple[Path, str]]:
        """Another process opens the file itself."""
        return TextStore, (self.path, self.fingerprint)

    @cached_property
    def _reader(self) -> ArrayRecordReader:
        return ArrayRecordReader(str(self.path))

    def __len__(self) -> int:
        return self._reader.num_records()

    def __getitem__(self, index: int | slice) -> SentencePair | list[SentencePair]:
        """One pair, or the pairs of a slice."""
        if isinstance(index, slice):
            return self.take(range(len(self))[index])
        return self.take([range(len(self))[index]])[0]

    def take(self, indices: Iterable[int]) -> list[SentencePair]:
        """The pairs of these numbers."""
        return [SentencePair(*json.loads(record)) for record in self._reader.read([*indices])]

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
        lengths: positions of each side, ends included: `[pairs, sides]`.
        ends: index in `ids` where each side ends: `[pairs, sides]`.
    """

    def __init__(self, folder: Path, sides: int) -> None:
        """Open a folder that `store_ids` wrote."""
        self.path = folder
        self.ids = np.asarray(np.memmap(folder / "ids", np.int32, "r"))
        self.lengths = np.asarray(np.memmap(folder / "lengths", np.int32, "r")).reshape(-1, sides)
        self.ends = np.asarray(np.memmap(folder / "ends", np.int64, "r")).reshape(-1, sides)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> EncodedPair:
        """The ids of a pair."""
        ends, lengths = self.ends[index].tolist(), self.lengths[index].tolist()
        sides = zip(ends, lengths, strict=True)
        return EncodedPair(*(self.ids[end - length + 1 : end] for end, length in sides))


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
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / f"{fingerprint([name])}.json" if name else None
    if known and known.exists():
        content, text = json.loads(known.read_text())
        if (folder / content).exists():
            return TextStore(folder / content, text)
    remove_abandoned(folder)
    with TemporaryDirectory(dir=folder, suffix=PART) as temporary:
        part = Path(temporary) / "records"
        writer = ArrayRecordWriter(str(part), "group_size:1,uncompressed")
        records, texts = hashlib.sha256(), hashlib.sha256()
        try:
            for pair in read():
                record = json.dumps(pair).encode()
                records.update(record)
                texts.update(f"{pair.source}\t{pair.target}\n".encode())
                writer.write(record)
        finally:
            writer.close()
        content, text = f"{records.hexdigest()[:16]}.array_record", texts.hexdigest()[:16]
        publish(part, folder / content)
    if known:
        write_whole(known, json.dumps([content, text]))
    return TextStore(folder / content, text)


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
        tokenizers: of their sides.
        max_ids: of an example; the rest of a longer source becomes further examples. No limit if
            None.
        map_function: calls a function for each of some items, and returns the results in their
            order; `experiments.prepare.BeamMap` uses several machines.

    Raises:
        ValueError: an unknown word.
    """
    known = [*filter(None, tokenizers)]
    learned = fingerprint(f"{each.FILE} {each.as_bytes().hex()}" for each in known)
    folder = cache / "ids" / f"{texts.path.stem}.{learned}.{max_ids or 'whole'}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(folder.parent)
        with TemporaryDirectory(dir=folder.parent, suffix=PART) as temporary:
            part = Path(temporary) / "ids"
            part.mkdir()
            encode = partial(_encoded, texts, tokenizers, max_ids)
            _write_ids(part, map_function(encode, range(0, len(texts), CHUNK)))
            try:
                publish(part, folder)
            except OSError:
                if not folder.exists():  # no other process has written the same meanwhile
                    raise
    return IdStore(folder, len(known))


def _encoded(
    texts: TextStore, tokenizers: Tokenizers, max_ids: int | None, start: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of a chunk of pairs, and the number of ids of each side `[pairs, sides]`."""
    num_sides = len([*filter(None, tokenizers)])
    encoded = []
    for pair in texts[start : start + CHUNK]:
        sides = tokenizers.encode(pair)[:num_sides]
        if max_ids:  # of sources alone
            (ids,) = sides
            sides = [ids[first : first + max_ids] for first in range(0, len(ids), max_ids)]
        encoded += [np.array(ids, np.int32) for ids in sides]
    sizes = np.array([len(ids) for ids in encoded], np.int32).reshape(-1, num_sides)
    return np.concatenate([np.zeros(0, np.int32), *encoded]), sizes


def _write_ids(folder: Path, chunks: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
    end = 0
    with (
        (folder / "ids").open("wb") as all_ids,
        (folder / "lengths").open("wb") as lengths,
        (folder / "ends").open("wb") as ends,
    ):
        for ids, sizes in chunks:
            all_ids.write(ids)
            lengths.write(sizes + 1)
            ends.write(end + np.cumsum(sizes, dtype=np.int64))
            end += len(ids)

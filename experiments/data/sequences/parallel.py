"""Parallel text of your own: two files whose lines translate each other, or one with two columns.

A split is found in `data.path` by its name in `data.files`, here "train", and by `data.source` and
`data.target`, here "en" and "de":

    train.en and train.de, or train.tsv with a tab between the two; each also as .gz

What is wrong with a pair is told with its file and line. `data.faults` says what is done about it:
"refuse", or "drop", which counts aloud what it drops.
"""

import gzip
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from attention.modules.choice import one_of
from experiments.data.pairs import SentencePair
from experiments.data.source import Source
from experiments.data.tokenizers import Subwords
from experiments.errors import check_at_least

SPLITS = ("train", "validation", "test")
FAULTS = ("refuse", "drop")
COMPRESSED = ".gz"
SUBWORDS = Subwords()


class Line(NamedTuple):
    """A side of a pair, or what is wrong with it.

    Attributes:
        place: its file and number.
        text: stripped.
        fault: in words; empty if there is none.
    """

    place: str
    text: str
    fault: str = ""


def check(config: ConfigDict) -> None:
    """Checks that the files are there.

    Raises:
        ValueError: in one sentence.
    """
    one_of("data.faults", config.faults, FAULTS)
    check_at_least("data.longest", config.longest, 1)
    SUBWORDS.check(config)
    for split in SPLITS:
        _files(config, split)


def load(config: ConfigDict, split: str, cache: Path) -> list[SentencePair]:
    """One split.

    Raises:
        ValueError: a fault, if those are refused; files of unequal length; nothing that is left.
    """
    del cache
    refuse, pairs, dropped = config.faults == "refuse", [], Counter[str]()
    for source, target in _lines(_files(config, split)):
        for line in (source, target):
            if fault := line.fault or _fault(line.text, config.longest):
                break
        else:
            pairs.append(SentencePair(source.text, target.text))
            continue
        if refuse:
            raise ValueError(f"{line.place}: {fault}; data.faults=drop leaves such pairs out")
        dropped[fault] += 1
    for fault, number in dropped.most_common():
        print(f"{split}: {number:,} pairs left out: {fault}", file=sys.stderr)
    if not pairs:
        raise ValueError(f"the {split} split of data.path={config.path} has no pairs")
    return pairs


def _fault(text: str, longest: int) -> str:
    if not text:
        return "an empty line"
    return f"more than data.longest={longest} words" if len(text.split()) > longest else ""


def _files(config: ConfigDict, split: str) -> list[Path]:
    """The file of both languages, or one for each."""
    folder, stem = Path(config.path), config.files[split]
    languages = config.source, config.target
    names = [[f"{stem}.tsv"], [f"{stem}.{language}" for language in languages]]
    for wanted in names:
        for ending in ("", COMPRESSED):
            paths = [folder / (name + ending) for name in wanted]
            if all(path.is_file() for path in paths):
                return paths
    raise ValueError(
        f"data.path={config.path} has no {' and '.join(names[1])} and no {names[0][0]} for the "
        f"{split} split, plain or as {COMPRESSED}"
    )


def _lines(paths: list[Path]) -> Iterator[tuple[Line, Line]]:
    """Both sides of every pair."""
    if len(paths) == 1:
        for line in _read(paths[0]):
            columns = line.text.split("\t")
            fault = line.fault or ("" if len(columns) == 2 else f"{len(columns)} columns, not 2")
            source, target = columns if not fault else ("", "")
            yield Line(line.place, source.strip(), fault), Line(line.place, target.strip())
        return
    sides = [list(_read(path)) for path in paths]
    if len(sides[0]) != len(sides[1]):
        counts = " and ".join(f"{path} {len(s):,}" for path, s in zip(paths, sides, strict=True))
        raise ValueError(f"two files of parallel text have equally many lines, not {counts}")
    for source, target in zip(*sides, strict=True):
        yield source._replace(text=source.text.strip()), target._replace(text=target.text.strip())


def _read(path: Path) -> Iterator[Line]:
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == COMPRESSED else content
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(content.splitlines(), start=1):
        place = f"{path}, line {number}"
        try:
            yield Line(place, line.decode("utf-8"))
        except UnicodeDecodeError:
            yield Line(place, "", "no UTF-8")


SOURCE = Source(load, check, text=SUBWORDS)

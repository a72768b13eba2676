"""What is wrong with pairs of other people, and what is done about it.

A fault is told with its place. `data.faults` says what follows: "refuse", or "drop", which counts
aloud what it drops, and where the first of each kind stands.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from experiments.config.data import ParallelData, TfdsData
from experiments.data.pairs import SentencePair
from experiments.errors import UsageError


class Line(NamedTuple):
    """A side of a pair, or what is wrong with it.

    Attributes:
        place: where it stands, for the person who looks for it.
        text: what it says; blanks around it do not count.
        fault: in words; empty if there is none.
    """

    place: str
    text: str
    fault: str = ""

    @classmethod
    def of(cls, place: str, content: bytes) -> "Line":
        """What bytes say."""
        try:
            return cls(place, content.decode("utf-8"))
        except UnicodeDecodeError:
            return cls(place, "", "no UTF-8")


def sound_pairs(
    lines: Iterable[tuple[Line, Line]], config: ParallelData | TfdsData, split: str
) -> Iterator[SentencePair]:
    """Yield the pairs of a split that have no fault.

    Args:
        lines: both sides of every pair.
        config: of the data.
        split: its name.

    Raises:
        UsageError: a fault, if those are refused; nothing that is left.
    """
    kept, dropped = 0, defaultdict[str, list[str]](list)
    for sides in lines:
        found = [(line, fault) for line in sides if (fault := _fault(line, config.longest))]
        if not found:
            yield SentencePair(*(line.text.strip() for line in sides))
            kept += 1
            continue
        line, fault = found[0]
        if config.faults == "refuse":
            raise UsageError(f"{line.place}: {fault}; data.faults=drop leaves such pairs out")
        dropped[fault].append(line.place)
    total = kept + sum(map(len, dropped.values()))
    for fault, places in sorted(dropped.items(), key=lambda item: -len(item[1])):
        tell_left_out(split, len(places), total, f"{fault}, first in {places[0]}")
    if not kept:
        raise UsageError(f"the {split} split of the {config.name} data has no pairs")


def tell_left_out(split: str, number: int, total: int, why: str) -> None:
    """Counts aloud the pairs of a split that are dropped."""
    print(f"{split}: {number:,} of {total:,} pairs left out: {why}", file=sys.stderr)


def _fault(line: Line, longest: int) -> str:
    text = line.text.strip()
    if line.fault or not text:
        return line.fault or "an empty line"
    if "\n" in text or "\r" in text:
        return "more than one line"
    if "\0" in text:
        return "a NUL, which is no text"
    return f"more than data.longest={longest} words" if len(text.split()) > longest else ""

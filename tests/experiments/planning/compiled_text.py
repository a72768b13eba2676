"""Bytes communicated and FLOPs in the text of a compiled program."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from experiments.planning.communication import KINDS

ITEMSIZES = {"f64": 8, "s64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "pred": 1}
INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\(")
ARRAY = re.compile(rf"\b({'|'.join(ITEMSIZES)})\[([\d,]*)\]")
CALLED = re.compile(r"(?:body|calls|to_apply|branch_computations)=(\{.*?\}|%?[\w.\-]+)")


class Instruction(NamedTuple):
    """An instruction of a program, and how often it runs.

    Attributes:
        kind: as "all-gather".
        result: shape of the result, or of several.
        operand: shape of the first operand, if this computation contains it.
        line: its text.
        times: product of the trip counts of the loops around it.
    """

    kind: str
    result: str
    operand: str
    line: str
    times: int


def sent_by_kind(text: str) -> dict[str, float]:
    """Return the bytes that a device sends on a ring, by the names in `KINDS`."""
    total = dict.fromkeys(KINDS, 0.0)
    for each in instructions(text):
        if each.kind in KINDS:
            size, devices = _bytes(each.result), _devices(each.line)
            others = {"all-reduce": 2 * (devices - 1), "reduce-scatter": devices * (devices - 1)}
            share = others.get(each.kind, devices - 1) / devices
            share = 1 if each.kind == "collective-permute" else share
            total[each.kind] += share * size * each.times
    return total


def product_flops(text: str) -> int:
    """Return the FLOPs of matrix products."""
    total = 0
    for each in instructions(text):
        if each.kind == "dot":
            axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", each.line)[1]
            shape = next(_shapes(each.operand))[1]
            depth = math.prod(shape[int(axis)] for axis in axes.split(",") if axis)
            total += 2 * depth * math.prod(next(_shapes(each.result))[1]) * each.times
    return total


def instructions(text: str) -> Iterator[Instruction]:
    """Yield the instructions of a program, those in loops and fusions included."""
    computations: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        if found := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$", line):
            name, entry = found[2], found[2] if found[1] else entry
            computations[name] = []
        elif line.strip() and name:
            computations[name].append(line)
    yield from _called(computations, entry, 1)


def _called(computations: dict[str, list[str]], name: str, times: int) -> Iterator[Instruction]:
    shapes: dict[str, str] = {}
    for line in computations[name]:
        if not (found := INSTRUCTION.match(line)):
            continue
        own, result, kind = found.groups()
        shapes[own] = result
        operand = re.search(r"%([\w.\-]+)", line[found.end() :])
        yield Instruction(kind, result, shapes.get(operand[1], "") if operand else "", line, times)
        if kind not in ("while", "call", "conditional", "fusion"):
            continue  # others call scalar functions
        trips = re.search(r'known_trip_count":\{"n":"(\d+)"', line) if kind == "while" else None
        for called in CALLED.findall(line):
            for inner in re.findall(r"[\w.\-]+", called):
                yield from _called(computations, inner, times * (int(trips[1]) if trips else 1))


def _shapes(text: str) -> Iterator[tuple[str, list[int]]]:
    for kind, sizes in ARRAY.findall(text):
        yield kind, [int(size) for size in sizes.split(",") if size]


def _bytes(text: str) -> int:
    return sum(ITEMSIZES[kind] * math.prod(shape) for kind, shape in _shapes(text))


def _devices(line: str) -> int:
    """Return the number of devices in a group, in each of the three forms of `replica_groups`."""
    if found := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
        return found[1].count(",") + 1
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        return int(found[1])
    named = r"replica_groups=mesh\[(.*?)\](?:, device_ids=\(.*?\))? \{(.*?)\}"
    if not (found := re.search(named, line)):
        return 1  # "collective-permute" has pairs
    sizes = dict(re.findall(r"('\w+')=(\d+)", found[1]))
    parts = re.findall(r"('\w+')(?::\(\d+\)(\d+))?", found[2])
    return math.prod(int(part or sizes[axis]) for axis, part in parts)

"""Shares of the time of a compiled program, by source file, from a profiler trace."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import jax

from experiments.clock import seconds_of
from experiments.config_files import REPOSITORY
from experiments.environment import num_cores

LINEAR = "attention/modules/layers.py"
UNKNOWN = "no source file"
GAPS = "not in the trace: gaps, waiting, other threads of products"
_FIELD = re.compile(r"(\w+)=(\d+)")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")


class Share(NamedTuple):
    """Shares of the time of all cores.

    Attributes:
        part: a source file, `UNKNOWN` or `GAPS`.
        products: of matrix products.
        other: of other operations.
    """

    part: str
    products: float
    other: float


class Event(NamedTuple):
    """An operation that ran on a thread, in nanoseconds."""

    name: str
    start: float
    end: float


def profiled(run: Callable[[], object], programs: Callable[[], list[str]]) -> list[Share]:
    """Return the shares of a call, the largest first; their sum is 1.

    Args:
        run: computes, and waits until it is complete. It is called once before the trace.
        programs: returns the text of the compiled programs that it calls.
    """
    run()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            seconds = seconds_of(run)
        (path,) = Path(folder).rglob("*.xplane.pb")
        nanoseconds = self_times(path)
    sources = {name: place for text in programs() for name, place in sources_of(text).items()}
    return shares(nanoseconds, sources, total=1e9 * seconds * num_cores())


def shares(
    nanoseconds: Mapping[str, float], sources: Mapping[str, tuple[str, bool]], *, total: float
) -> list[Share]:
    """Return shares by source file, the largest first, with `GAPS` for the rest of the total."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])  # products, other
    for name, taken in nanoseconds.items():
        part, is_product = sources.get(name, (UNKNOWN, False))
        sums[part][not is_product] += taken / total
    found = [Share(part, *both) for part, both in sums.items()]
    found.append(Share(GAPS, 0.0, max(0.0, 1 - sum(map(sum, sums.values())))))
    return sorted(found, key=lambda share: -share.products - share.other)


def self_times(path: Path) -> dict[str, float]:
    """Return the nanoseconds of each operation of a trace, without operations that it contains."""
    taken: dict[str, float] = defaultdict(float)
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            events = [
                Event(operation, event.start_ns, event.start_ns + event.duration_ns)
                for event in line.events
                if (operation := dict(event.stats).get("hlo_op"))
            ]
            for name, duration in exclusive(events):
                taken[name] += duration
    return taken


def exclusive(events: list[Event]) -> Iterator[tuple[str, float]]:
    """Yield the duration of each event of a thread without the events inside it."""
    open_events: list[list] = []  # event, and the duration of those inside it

    def close(before: float) -> Iterator[tuple[str, float]]:
        while open_events and open_events[-1][0].end <= before:
            event, inside = open_events.pop()
            yield event.name, event.end - event.start - inside

    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        yield from close(event.start)
        if open_events:
            open_events[-1][1] += event.end - event.start
        open_events.append([event, 0.0])
    yield from close(float("inf"))


def sources_of(program: str) -> dict[str, tuple[str, bool]]:
    """Return (source file, whether it is a product) of each instruction of a compiled program.

    The file is the innermost one of this repository among the frames of the instruction, or the
    caller of `LINEAR`: a product belongs to its layer.

    Args:
        program: `Compiled.as_text()`.
    """
    frames = _frames(program)
    found = {}
    for match in filter(None, map(_INSTRUCTION.match, program.splitlines())):
        name, rest = match.groups()
        frame = re.search(r"stack_frame_id=(\d+)", rest)
        part = frames.get(int(frame[1]), UNKNOWN) if frame else UNKNOWN
        primitive = re.search(r'op_name="(?:.*/)?(\w+)"', rest)
        is_product = " dot(" in rest or (primitive is not None and primitive[1] == "dot_general")
        found[name] = part, is_product
    return found


def _frames(program: str) -> dict[int, str]:
    """Return the innermost file of this repository of each stack frame."""
    files, locations, frames = (
        _table(program, name) for name in ("FileNames", "FileLocations", "StackFrames")
    )
    found: dict[int, str] = {}
    for number, frame in frames.items():
        fields = dict(_FIELD.findall(frame))
        location = dict(_FIELD.findall(locations[int(fields["file_location_id"])]))
        file = Path(files[int(location["file_name_id"])])
        # XLA writes the number of the parent plus 1, and 1 without a parent.
        caller = found.get(int(fields["parent_frame_id"]) - 1)
        if file.is_relative_to(REPOSITORY) and "site-packages" not in file.parts:
            name = file.relative_to(REPOSITORY).as_posix()
            found[number] = caller if caller and name == LINEAR else name
        elif caller:
            found[number] = caller
    return found


def _table(program: str, name: str) -> dict[int, str]:
    """Return the numbered rows of a table in the text of a program."""
    _, _, rest = program.partition(f"\n{name}\n")
    rows = re.findall(r'(\d+) ["{](.*)["}]', rest.partition("\n\n")[0])
    return {int(number): text for number, text in rows}

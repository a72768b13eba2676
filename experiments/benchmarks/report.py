"""Pages of what was measured, and the figures as JSON beside them."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmarks.cases import HEAD_WIDTH, NUM_HEADS
from experiments.errors import UsageError
from experiments.files import write_whole
from experiments.records import markdown_table
from experiments.workdir import origin

PACKAGES = "flax", "torch", "tokamax", "ctranslate2"
Record = Mapping[str, Any]  # field → JSON


class Measurement(NamedTuple):
    """Time and memory of one contender in one case."""

    case: str  # its name
    batch: int  # B
    contender: str  # its name
    chosen: bool  # whether `attend` chooses this implementation by default
    seconds: float | None = None  # the median of the timed calls; None if not measured
    calls: int = 0  # number of timed calls
    scratch: int | None = None  # bytes of memory beside inputs and outputs; None if unknown
    reason: str = ""  # for which it was not measured


class Deviation(NamedTuple):
    """Error of one contender relative to float64, as a share of the norm of the exact arrays."""

    case: str
    contender: str
    output: float
    gradient: float  # the largest error of the gradients of query, key and value


INTRODUCTION = f"""\
# Benchmarks

Time, scratch memory and error of `attend` and of the attention functions of other libraries, in one
process: the contenders take turns, so that other load of the machine slows down all of them. In its
turn each is called twice and the second call is timed: the first one also waits for memory that
another contender has given back. The median over the turns is reported; contenders that take
seconds have fewer turns. N {NUM_HEADS}, H {HEAD_WIDTH}, S = T; *gradient* is forward and backward.
Each peer is called as its documentation recommends: with a flag if it has one, else with a dense
mask, or the block mask of FlexAttention, that is made before the clock starts. This command writes
the page, from the figures in the JSON file beside it:
"""
TIME_NOTE = """\
Our median in milliseconds and scratch memory in MiB, for the implementation that `attend` chooses;
then ours ÷ each other contender, below 1 if ours is faster. *-*: not measured, see below."""
ERROR_NOTE = """\
Norm of the error over the norm of the exact array, for the output / the worst of the three
gradients; one example, standard normal inputs. Exact arrays are computed by the reference
implementation in float64."""


def save(record: Record, make_page: Callable[[Record], str], path: Path, copy: str) -> None:
    """Write a record to a `.json` file and its page beside it, and print the page.

    `copy` is the path of a `.md` file that gets the page too, with the record beside it, or "".

    Raises:
        UsageError: the copy has no folder, or is no `.md` file.
    """
    if copy and not (Path(copy).suffix == ".md" and Path(copy).parent.is_dir()):
        raise UsageError(f"page={copy} must be a .md file in a folder that exists")
    versions = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    text = as_json({"origin": {**origin(), **versions}, **record})
    page = make_page(json.loads(text))
    for place in [path, *([Path(copy)] if copy else [])]:
        write_whole(place.with_suffix(".json"), text)
        write_whole(place.with_suffix(".md"), page)
    print(page)
    print(f"everything is in {path.parent}")


def as_json(record: Record) -> str:
    """Return a record as JSON with numbers of six digits."""
    exact = json.dumps(record)
    rounded = json.loads(exact, parse_float=lambda number: float(f"{float(number):.6g}"))
    return json.dumps(rounded, ensure_ascii=False, indent=1) + "\n"


def beginning(introduction: str, origin: Mapping[str, str]) -> str:
    """Return the begin of a page: its introduction, and the origin of the record."""
    machine = [f"{name} {origin[name]}" for name in origin if name not in ("command", "commit")]
    return (
        f"{introduction}\n```sh\n{origin['command']}\n```\n\n"
        f"Measured at commit {origin['commit']} on {'; '.join(machine)}.\n"
    )


def attention_page(record: Record) -> str:
    """Return the page of the benchmark of attention as Markdown."""
    measurements = [Measurement(**fields) for fields in record["measurements"]]
    deviations = [Deviation(**fields) for fields in record["deviations"]]
    lines = [beginning(INTRODUCTION, record["origin"])]
    if rows := _time_rows(measurements):
        lines += ["## Time", "", TIME_NOTE, "", markdown_table(rows)]
    if rows := _error_rows(deviations):
        lines += ["## Error against float64", "", ERROR_NOTE, "", markdown_table(rows)]
    lines += ["## Not measured", "", *_refusals(measurements, record["absent"]), ""]
    return "\n".join(lines)


def _time_rows(measurements: Sequence[Measurement]) -> list[dict[str, str]]:
    times = {(one.case, one.contender): one.seconds for one in measurements}
    peers = [*dict.fromkeys(one.contender for one in measurements if one.seconds)]
    rows = []
    for ours in (one for one in measurements if one.chosen and one.seconds):
        ratios = {
            f"÷ {peer}": _number(seconds and ours.seconds / seconds)
            for peer in peers
            if (seconds := times.get((ours.case, peer))) != ours.seconds
        }
        own = {"ms": _number(1e3 * ours.seconds), "MiB": _number((ours.scratch or 0) / 2**20)}
        name = ours.contender.removeprefix("attend:")
        rows.append({"case": ours.case, "B": str(ours.batch), "ours": name, **own, **ratios})
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name, "") for name in columns} for row in rows]


def _error_rows(deviations: Sequence[Deviation]) -> list[dict[str, str]]:
    errors = {
        (one.case, one.contender): f"{one.output:.2e} / {one.gradient:.2e}" for one in deviations
    }
    contenders = [*dict.fromkeys(one.contender for one in deviations)]
    return [
        {"case": case} | {name: errors.get((case, name), "-") for name in contenders}
        for case in dict.fromkeys(one.case for one in deviations)
    ]


def _refusals(measurements: Sequence[Measurement], absent: Sequence[tuple[str, str]]) -> list[str]:
    refused = [(one.contender, one.reason) for one in measurements if one.reason]
    every = dict.fromkeys([*map(tuple, absent), *refused])
    return [f"- `{name}`: {reason}" for name, reason in every] or ["Nothing."]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


MODELS = """\
# Benchmarks of models

Training and translation beside other libraries, as ratios of times that were measured in turn in
one process. This command writes the page, from the figures in the JSON file beside it:
"""


def models_page(record: Record) -> str:
    """Return the page of the benchmark of models as Markdown."""
    rows = [
        {
            "figure": name,
            "seconds": " ÷ ".join(f"{value:.3g} ({note})" for value, note in (ours, theirs)),
            "ratio": _number(ours[0] / theirs[0]),
        }
        for name, ours, theirs in record["figures"]
    ]
    absent = [f"- {reason}" for reason in record["absent"]]
    lines = [beginning(MODELS, record["origin"]), *([markdown_table(rows)] if rows else [])]
    return "\n".join([*lines, *(["Not measured:", "", *absent, ""] if absent else [])])

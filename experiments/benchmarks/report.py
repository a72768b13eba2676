"""Page of a record of the benchmark."""

from collections.abc import Iterable, Sequence

from experiments.benchmarks.cases import HEAD_WIDTH, NUM_HEADS
from experiments.benchmarks.goals import goals
from experiments.benchmarks.products import Product
from experiments.benchmarks.record import Record, beginning, table
from experiments.benchmarks.results import Deviation, Results

INTRODUCTION = f"""\
# Benchmarks

Time, scratch memory and error of `attend` and of the attention functions of other libraries, in one
process: the contenders take turns, so that other load of the machine slows down all of them. In its
turn each is called twice and the second call is timed: the first one also waits for memory that
another contender has given back. The median over the turns is reported; contenders that take
seconds have fewer turns. N {NUM_HEADS}, H {HEAD_WIDTH}, S = T; *gradient* is forward and backward.
Each peer is called as its documentation recommends: with a flag if it has one, else with a dense
mask, or the block mask of FlexAttention, that is made before the clock starts. This command writes
the page, from the figures in `BENCHMARKS.json` beside it:
"""


def page(record: Record) -> str:
    """Return the page of a record as Markdown.

    Args:
        record: of the run: `origin`, the fields of `Results`, and `products`, `absent`: (name,
            reason) of libraries and contenders without results, and `failed`, the exceptions of
            this library, in words.
    """
    results = Results.read(record)
    parts = [beginning(INTRODUCTION, record["origin"])]
    if failed := record["failed"]:
        parts += ["## Failures of this library", "", *(f"- {each}" for each in failed), ""]
    parts += ["## Goals", "", _GOALS, "", _goals(results)]
    parts += ["", "## Time", "", _TIME, "", _times(results)]
    parts += ["", "## Error against float64", "", _ERROR, "", _errors(results.deviations)]
    products = [Product(**each) for each in record["products"]]
    parts += ["", "## Matrix products", "", _PRODUCTS, "", _products(products)]
    parts += ["", "## Not measured", "", *_refusals(results, record["absent"])]
    return "\n".join([*parts, ""])


_GOALS = """\
Ratios that `attend` is meant to reach, chosen before they were measured. One that is not met shows
where another function is faster or more exact, or how far memory is from its goal."""
_TIME = """\
Our median in milliseconds and scratch memory in MiB, for the implementation that `attend` chooses;
then ours ÷ each other contender, below 1 if ours is faster. *-*: not measured."""
_ERROR = """\
Norm of the error over the norm of the exact array, for the output / the worst of the three
gradients; one example, standard normal inputs. Exact arrays are computed by the reference
implementation in float64."""
_PRODUCTS = """\
GFLOP/s of single products of float32 matrices: an upper bound for attention functions."""


def _goals(results: Results) -> str:
    lines = [["goal", "at most", "measured", "met"]]
    for goal in goals():
        found = goal.measure(results)
        verdict = "-" if found is None else "yes" if found <= goal.limit else "**no**"
        lines.append([goal.name, f"{goal.limit:g}", _number(found), verdict])
    return table(lines)


def _times(results: Results) -> str:
    contenders = list(dict.fromkeys(one.contender for one in results.measured()))
    lines = [["case", "B", "ours", "ms", "MiB", *(f"÷ {name}" for name in contenders)]]
    for case in dict.fromkeys(one.case for one in results.measurements):
        ours = results.ours(case.name)
        if ours is None:
            lines.append([case.name, str(case.batch), *"-" * (3 + len(contenders))])
            continue
        ratios = [
            "" if name == ours.contender else _number(results.ratio(case.name, [name]))
            for name in contenders
        ]
        scratch = None if ours.scratch is None else ours.scratch / 2**20
        implementation = ours.contender.partition(":")[2]
        figures = [_number(1e3 * ours.quantile(0.5)), _number(scratch)]
        lines.append([case.name, str(case.batch), implementation, *figures, *ratios])
    return table(lines)


def _errors(deviations: Sequence[Deviation]) -> str:
    contenders = list(dict.fromkeys(one.contender for one in deviations))
    lines = [["case", *contenders]]
    for case in dict.fromkeys(one.case for one in deviations):
        found = {one.contender: one for one in deviations if one.case == case}
        cells = [
            f"{one.output:.2e} / {one.gradient:.2e}" if (one := found.get(name)) else "-"
            for name in contenders
        ]
        lines.append([case.name, *cells])
    return table(lines)


def _products(products: Sequence[Product]) -> str:
    libraries = list(dict.fromkeys(one.library for one in products))
    lines = [["rows x inner x columns", *libraries]]
    for shape in dict.fromkeys(one.shape for one in products):
        found = {one.library: one.gflops for one in products if one.shape == shape}
        lines.append([shape, *(_number(found.get(library)) for library in libraries)])
    return table(lines)


def _refusals(results: Results, absent: Iterable[tuple[str, str]]) -> list[str]:
    cases: dict[tuple[str, str], list[str]] = {}
    for one in results.measurements:
        if one.reason:
            cases.setdefault((one.contender, one.reason), []).append(one.case.name)
    lines = [f"- `{name}`: {why}" for name, why in absent]
    lines += [f"- `{name}`, {', '.join(names)}: {why}" for (name, why), names in cases.items()]
    return lines or ["Nothing."]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"

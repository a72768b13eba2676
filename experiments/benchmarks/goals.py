"""Goals of this library, as ratios that do not depend on the machine."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from experiments.benchmarks.cases import named
from experiments.benchmarks.results import Results


class Goal(NamedTuple):
    """A figure and its upper limit.

    Attributes:
        name: of the figure.
        limit: the goal is met by values up to this one.
        measure: compute it from the results; None if one of its measurements is missing.
    """

    name: str
    limit: float
    measure: Callable[[Results], float | None]


def goals() -> Iterator[Goal]:
    """Yield all goals, in the order of the report."""
    for gradient, name, limit in ((False, "forward", 0.60), (True, "forward + backward", 0.65)):
        for pattern in ("full", "causal"):
            case = named(pattern, 4096, gradient=gradient).name
            yield Goal(f"{name}, {pattern}, T 4096 ÷ torch", limit, _ratio(case, "torch"))
    for length in (4096, 8192):
        case = named("causal", length, gradient=True).name
        title = f"forward + backward, causal, T {length} ÷ jax.nn"
        yield Goal(title, 0.12, _ratio(case, "jax.nn"))
    for pattern in ("full", "causal"):
        for length in (64, 128, 256, 512):
            case = named(pattern, length, gradient=True).name
            title = f"forward + backward, {pattern}, T {length} ÷ the better of jax.nn and torch"
            yield Goal(title, 1.0, _ratio(case, "jax.nn", "torch"))
    title = "scratch memory in MiB, forward + backward, causal, T 8192"
    yield Goal(title, 100, _scratch_mib(named("causal", 8192, gradient=True).name))
    title = "forward, window of 256, T 16384 ÷ jax.nn with local_window_size"
    yield Goal(title, 0.05, _ratio(named("window", 16384).name, "jax.nn"))
    for pattern, length, name in (
        ("window", 16384, "window of 256, T 16384"),
        ("packed", 4096, "eight packed segments of 512"),
    ):
        flex = _ratio(named(pattern, length).name, "torch:flex_attention")
        yield Goal(f"forward, {name} ÷ FlexAttention", 1.0, flex)
    for gradient, name in ((False, "forward"), (True, "forward + backward")):
        packed, one = (named(pattern, 4096, gradient=gradient) for pattern in ("packed", "full"))
        title = f"{name}, eight packed segments of 512 ÷ one of 4096"
        yield Goal(title, 0.2, _ours_over_ours(packed.name, one.name))
    for part in ("output", "gradient"):
        title = f"error of the {part} against float64 ÷ that of jax.nn, the largest ratio"
        yield Goal(title, 1.0, _error_ratio(part))


def _ratio(case: str, *peers: str) -> Callable[[Results], float | None]:
    return lambda results: results.ratio(case, peers)


def _scratch_mib(case: str) -> Callable[[Results], float | None]:
    def measure(results: Results) -> float | None:
        ours = results.ours(case)
        return None if ours is None or ours.scratch is None else ours.scratch / 2**20

    return measure


def _ours_over_ours(case: str, other: str) -> Callable[[Results], float | None]:
    def measure(results: Results) -> float | None:
        ours = [results.ours(name) for name in (case, other)]
        return None if None in ours else ours[0].quantile(0.5) / ours[1].quantile(0.5)

    return measure


def _error_ratio(part: str) -> Callable[[Results], float | None]:
    def measure(results: Results) -> float | None:
        ours = {one.case: getattr(one, part) for one in results.deviations if one.chosen}
        ratios = [
            ours[one.case] / getattr(one, part)
            for one in results.deviations
            if one.contender == "jax.nn" and one.case in ours
        ]
        return max(ratios, default=None)

    return measure

"""Measurements of a run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from experiments.benchmarks.cases import Case
from experiments.benchmarks.record import Record


@dataclass(frozen=True)
class Measurement:
    """Times and memory of one contender in one case.

    Attributes:
        case: that was computed.
        contender: name.
        version: of the contender.
        chosen: whether `attend` chooses this implementation by default.
        times: seconds of each timed call; empty if not measured.
        scratch: bytes of memory beside inputs and outputs; None if unknown.
        reason: for which it was not measured.
    """

    case: Case
    contender: str
    version: str
    chosen: bool
    times: tuple[float, ...] = ()
    scratch: int | None = None
    reason: str = ""

    def quantile(self, share: float) -> float | None:
        """Return a quantile of the times in seconds: 0.5 is the median."""
        return float(np.quantile(self.times, share)) if self.times else None


@dataclass(frozen=True)
class Deviation:
    """Error of one contender relative to float64, as a share of the norm of the exact arrays.

    Attributes:
        case: that was computed.
        contender: name.
        chosen: whether `attend` chooses this implementation by default.
        output: error of the output.
        gradient: largest error of the gradients of query, key and value.
    """

    case: Case
    contender: str
    chosen: bool
    output: float
    gradient: float


@dataclass(frozen=True)
class Results:
    """All measurements of a run.

    Attributes:
        measurements: times and memory.
        deviations: errors relative to float64.
    """

    measurements: Sequence[Measurement] = field(default_factory=list)
    deviations: Sequence[Deviation] = field(default_factory=list)

    @classmethod
    def read(cls, record: Record) -> Self:
        """Return the results in a record, as `dataclasses.asdict` wrote them."""

        def read_case(fields: Record) -> Record:
            return {**fields, "case": Case(**fields["case"])}

        measurements = map(read_case, record["measurements"])
        return cls(
            [Measurement(**{**one, "times": tuple(one["times"])}) for one in measurements],
            [Deviation(**one) for one in map(read_case, record["deviations"])],
        )

    def ours(self, case: str) -> Measurement | None:
        """Return the measurement of the implementation that `attend` chooses, if there is one."""
        return next((one for one in self.measured(case) if one.chosen), None)

    def measured(self, case: str | None = None) -> list[Measurement]:
        """Return the measurements with times, of one case or of all."""
        return [one for one in self.measurements if one.times and case in (None, one.case.name)]

    def ratio(self, case: str, peers: Iterable[str]) -> float | None:
        """Return our median time over that of the fastest peer; None if one is missing."""
        times = {one.contender: one.quantile(0.5) for one in self.measured(case)}
        ours, peers = self.ours(case), list(peers)
        if ours is None or not set(peers) <= set(times):
            return None
        return ours.quantile(0.5) / min(times[peer] for peer in peers)

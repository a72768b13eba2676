"""What was measured, and how to ask for it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from experiments.benchmarks.cases import Case


@dataclass(frozen=True)
class Measurement:
    """One contender in one case.

    Attributes:
        case: what was computed.
        contender: by whom.
        version: of that contender.
        chosen: whether it is what `attend` chooses for the case.
        times: seconds of each call; empty if it was not measured.
        scratch: bytes that it needs beside inputs and outputs; None where nobody can say.
        reason: why it was not measured.
    """

    case: Case
    contender: str
    version: str
    chosen: bool
    times: tuple[float, ...] = ()
    scratch: int | None = None
    reason: str = ""

    def quantile(self, share: float) -> float | None:
        """Seconds: 0.5 is the median, 0.25 and 0.75 are the spread."""
        return float(np.quantile(self.times, share)) if self.times else None


@dataclass(frozen=True)
class Deviation:
    """How far one contender is from float64, relative to the norm of the exact arrays.

    Attributes:
        case: what was computed.
        contender: by whom.
        chosen: whether it is what `attend` chooses for the case.
        output: of the output.
        gradient: the largest of those of query, key and value.
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
        measurements: of times and memory.
        deviations: from float64.
    """

    measurements: Sequence[Measurement] = field(default_factory=list)
    deviations: Sequence[Deviation] = field(default_factory=list)

    def ours(self, case: str) -> Measurement | None:
        """Of what `attend` chooses for a case, if it was measured."""
        return next((one for one in self.measured(case) if one.chosen), None)

    def measured(self, case: str | None = None) -> list[Measurement]:
        """Of all that were measured in a case, or in any."""
        return [one for one in self.measurements if one.times and case in (None, one.case.name)]

    def ratio(self, case: str, peers: Iterable[str]) -> float | None:
        """Median time of ours over that of the fastest of some; None if any is missing."""
        times = {one.contender: one.quantile(0.5) for one in self.measured(case)}
        ours, peers = self.ours(case), list(peers)
        if ours is None or not set(peers) <= set(times):
            return None
        return ours.quantile(0.5) / min(times[peer] for peer in peers)

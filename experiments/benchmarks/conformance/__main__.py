"""Write docs/CONFORMANCE.md: python -m experiments.benchmarks.conformance [file]."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

from attention.testing import check_attention
from experiments.benchmarks import ours
from experiments.benchmarks.conformance.page import page
from experiments.benchmarks.contender import LIBRARY, Candidate
from experiments.benchmarks.peers import of_peers

PAGE = Path("docs/CONFORMANCE.md")


def main(argv: Sequence[str]) -> int:
    """Write the page and return the exit status: 1 if an implementation of this library fails."""
    checked, absent = [], []
    for candidate in candidates():
        if not isinstance(candidate, Candidate):
            absent.append(candidate)
            continue
        print(f"{candidate.name} …", file=sys.stderr, flush=True)
        checked.append((candidate, check_attention(candidate.function, candidate.supports)))
    device = jax.devices()[0]
    platform = f"{device.platform} ({device.device_kind}), jax {jax.__version__}"
    path = Path(argv[1]) if len(argv) > 1 else PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(checked, absent, platform), encoding="utf-8")
    return int(not all(report.ok for one, report in checked if one.version == LIBRARY))


def candidates() -> Iterator[Candidate | tuple[str, str]]:
    """Yield all candidates; (name, reason) for those that cannot run here."""
    yield from ours.candidates()
    yield from of_peers(lambda peer: peer.candidates())


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)  # the rows about sharding need two devices
    sys.exit(main(sys.argv))

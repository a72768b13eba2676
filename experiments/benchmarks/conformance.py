"""Check attention functions and write docs/CONFORMANCE.md.

Command: python -m experiments.benchmarks.conformance [file]
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

from attention.testing import ROWS, Report, check_attention
from experiments.benchmarks import ours
from experiments.benchmarks.contender import LIBRARY, Candidate
from experiments.benchmarks.peers import of_peers
from experiments.benchmarks.record import table

PAGE = Path("docs/CONFORMANCE.md")
MARKS = {
    "pass": "pass",
    "fail": "**FAIL**",
    "error": "**ERROR**",
    "not supported": "-",
    "skipped": "?",
}

INTRODUCTION = """\
# Conformance

Results of `attention.testing.check_attention` for each implementation of this library and for the
attention functions of other libraries. Each function is called as its documentation describes, and
checked for the capabilities that its documentation claims. This command writes the page:

```sh
python -m experiments.benchmarks.conformance
```

Packages that are not installed are left out: `pip install torch tokamax`.

*pass*: the property holds. **FAIL**: it does not; the smallest failing example is below.
**ERROR**: an exception. *-*: not claimed, or refused with a reason. *?*: skipped, since a row that
it depends on failed. The rows are the contract of *this* library. Other libraries make other
choices: for example, that a fully masked query has output 0, and that a masked NaN has no effect,
are requirements of this contract only.
"""


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


def page(
    checked: Sequence[tuple[Candidate, Report]],
    absent: Sequence[tuple[str, str]],
    platform: str,
) -> str:
    """Return the page as Markdown.

    Args:
        checked: candidates with their reports.
        absent: (name, reason) of candidates that cannot run here.
        platform: device and jax version.
    """
    parts = [INTRODUCTION, f"Measured on {platform}.\n"]
    parts += [f"{n}. `{one.name}` ({one.version})" for n, (one, _) in enumerate(checked, 1)]
    parts += [f"- not run: `{name}`: {why}" for name, why in absent]
    parts += ["", _table([report for _, report in checked]), "", "## Failures"]
    for candidate, report in checked:
        if report.failed:
            parts += ["", f"### `{candidate.name}`", ""]
            parts += [f"- **{row.name}**: {row.detail} [{row.example}]" for row in report.failed]
    if not any(report.failed for _, report in checked):
        parts += ["", "None."]
    refused = _refusals(checked)
    return "\n".join([*parts, "", "## Refused arguments", "", *(refused or ["None."]), ""])


def _table(reports: Sequence[Report]) -> str:
    head = ["row", *(str(number) for number in range(1, len(reports) + 1))]
    body = ([name, *(MARKS[report[name].verdict] for report in reports)] for name in ROWS)
    return table([head, *body])


def _refusals(checked: Sequence[tuple[Candidate, Report]]) -> list[str]:
    """Return the rows that were claimed and raised NotImplementedError."""
    return [
        f"- `{candidate.name}`, {row.name}: {row.detail}"
        for candidate, report in checked
        for row in report.rows
        if row.verdict == "not supported" and not row.detail.startswith("without ")
    ]


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)  # the rows about sharding need two devices
    sys.exit(main(sys.argv))

"""Check attention functions and write docs/CONFORMANCE.md.

Command: python -m experiments.benchmarks.conformance [file]
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from attention.testing import ROWS, Report, check_attention
from experiments.benchmarks import ours
from experiments.benchmarks.contender import LIBRARY, Candidate
from experiments.benchmarks.peers import flax_nnx, jax_nn, tokamax_api
from experiments.records import markdown_table

PAGE = Path("docs/CONFORMANCE.md")
MARKS = {"fail": "**FAIL**", "error": "**ERROR**", "not supported": "-", "skipped": "?"}

INTRODUCTION = """\
# Conformance

Results of `attention.testing.check_attention` for each implementation of this library and for the
attention functions of jax, flax and tokamax. Each function is called as its documentation
describes, and checked for the capabilities that its documentation claims. This command writes the
page:

```sh
python -m experiments.benchmarks.conformance
```

*pass*: the property holds. **FAIL**: it does not; the smallest failing example is below.
**ERROR**: an exception. *-*: not claimed, or refused with a reason. *?*: skipped, since a row that
it depends on failed. The rows are the contract of *this* library. Other libraries make other
choices: for example, that a fully masked query has output 0, and that a masked NaN has no effect,
are requirements of this contract only.
"""


def main(argv: Sequence[str]) -> int:
    """Write the page and return the exit status: 1 if an implementation of this library fails."""
    candidates, absent = ours.candidates()
    for peer in (jax_nn, flax_nnx, tokamax_api):
        candidates += peer.candidates()
    checked = []
    for candidate in candidates:
        print(f"{candidate.name} …", file=sys.stderr, flush=True)
        checked.append((candidate, check_attention(candidate.function, candidate.supports)))
    path = Path(argv[1]) if len(argv) > 1 else PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(checked, absent), encoding="utf-8")
    return int(not all(report.ok for one, report in checked if one.version == LIBRARY))


def page(checked: Sequence[tuple[Candidate, Report]], absent: Sequence[tuple[str, str]]) -> str:
    """Return the page as Markdown.

    Args:
        checked: candidates with their reports.
        absent: (name, reason) of implementations that cannot run here.
    """
    device = jax.devices()[0]
    lines = [INTRODUCTION, f"Measured on {device.device_kind}, jax {jax.__version__}.\n"]
    lines += [f"{n}. `{one.name}` ({one.version})" for n, (one, _) in enumerate(checked, 1)]
    lines += [f"- not run: `{name}`: {why}" for name, why in absent]
    reports = [report for _, report in checked]
    verdicts = [[report[name].verdict for report in reports] for name in ROWS]
    rows = [
        {"row": name} | {str(n): MARKS.get(verdict, verdict) for n, verdict in enumerate(row, 1)}
        for name, row in zip(ROWS, verdicts, strict=True)
    ]
    lines += ["", markdown_table(rows), "## Failures"]
    for candidate, report in checked:
        failures = [f"- **{row.name}**: {row.detail} [{row.example}]" for row in report.failed]
        lines += ["", f"### `{candidate.name}`", "", *failures] if failures else []
    refused = [
        f"- `{candidate.name}`, {row.name}: {row.detail}"
        for candidate, report in checked
        for row in report.rows
        if row.verdict == "not supported" and not row.detail.startswith("without ")
    ]
    return "\n".join([*lines, "", "## Refused arguments", "", *(refused or ["None."]), ""])


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)  # the rows about sharding need two devices
    sys.exit(main(sys.argv))

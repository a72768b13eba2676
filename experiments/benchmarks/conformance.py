"""Check attention functions and write docs/CONFORMANCE.md.

Command: python -m experiments.benchmarks.conformance [file]
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from attention.testing import ROWS, Report, check_attention
from experiments.benchmarks import ours
from experiments.benchmarks.contender import LIBRARY, Contender
from experiments.benchmarks.peers import flax_nnx, jax_nn, tokamax_api
from experiments.records import markdown_table

PAGE = Path("docs/CONFORMANCE.md")
MARKS = {"fail": "**FAIL**", "error": "**ERROR**", "not supported": "-", "skipped": "?"}

INTRODUCTION = """\
# Conformance

Results of `attention.testing.check_attention` for each implementation of this library and for
`dot_product_attention` of jax.nn, flax.nnx and tokamax. Each function is called as its
documentation describes, and checked for the capabilities that its documentation claims. This
command writes the page:

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
    contenders = [*ours.contenders()]
    for peer in (jax_nn, flax_nnx, tokamax_api):
        contenders += peer.contenders()
    checked, absent, example = [], [], [jnp.ones((1, 16, 2, 64))] * 3
    for one in contenders:
        print(f"{one.name} …", file=sys.stderr, flush=True)
        try:
            one.function(*example)
        except NotImplementedError as refused:
            absent.append((one.name, str(refused)))
        else:
            checked.append((one, check_attention(one.function, one.supports)))
    path = Path(argv[1]) if len(argv) > 1 else PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(checked, absent), encoding="utf-8")
    return int(not all(report.ok for one, report in checked if one.version == LIBRARY))


def page(checked: Sequence[tuple[Contender, Report]], absent: Sequence[tuple[str, str]]) -> str:
    """Return the page as Markdown, from reports and (name, reason) of what cannot run here."""
    device = jax.devices()[0]
    lines = [INTRODUCTION, f"Measured on {device.device_kind}, jax {jax.__version__}.\n"]
    lines += [f"{n}. `{one.name}` ({one.version})" for n, (one, _) in enumerate(checked, 1)]
    lines += [f"- not run: `{name}`: {why}" for name, why in absent]
    rows = []
    for name in ROWS:
        verdicts = [report[name].verdict for _, report in checked]
        marks = [MARKS.get(verdict, verdict) for verdict in verdicts]
        rows.append({"row": name} | {str(n): mark for n, mark in enumerate(marks, 1)})
    lines += ["", markdown_table(rows), "## Failures"]
    for one, report in checked:
        failures = [f"- **{row.name}**: {row.detail} [{row.example}]" for row in report.failed]
        lines += ["", f"### `{one.name}`", "", *failures] if failures else []
    refused = [
        f"- `{one.name}`, {row.name}: {row.detail}"
        for one, report in checked
        for row in report.rows
        if row.verdict == "not supported" and not row.detail.startswith("without ")
    ]
    return "\n".join([*lines, "", "## Refused arguments", "", *(refused or ["None."]), ""])


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)  # the rows about sharding need two devices
    sys.exit(main(sys.argv))

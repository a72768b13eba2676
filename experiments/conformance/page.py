"""The page that shows what the suite says about everybody."""

from collections.abc import Sequence

from attention.testing import ROWS, Report
from experiments.conformance.candidate import Candidate

MARKS = {
    "pass": "pass",
    "fail": "**FAIL**",
    "error": "**ERROR**",
    "not supported": "-",
    "not judged": "?",
}

INTRODUCTION = """\
# Conformance

What `attention.testing.check_attention` says about each implementation of ours and about the
attention functions of others, in every row of the contract. Each is called the way its own
documentation says, and judged by what that documentation claims. Made by one command, which is the
only way to change this page:

```sh
python -m experiments.conformance
```

Peers that are not installed are left out; `pip install torch tokamax` brings them.

*pass*: the promise is kept. **FAIL**: it is not, with the smallest example below. **ERROR**: an
exception. *-*: not claimed, or refused with a reason. *?*: not judged, since a row it rests on
fails. A failure is one of *this* contract, which others never signed: that a query which may see
nothing gets zeros, or that NaN behind a mask goes nowhere, is a choice of ours.
"""


def page(
    judged: Sequence[tuple[Candidate, Report]],
    absent: Sequence[tuple[str, str]],
    platform: str,
) -> str:
    """Markdown.

    Args:
        judged: candidates with what the suite said.
        absent: (name, why) of those it could not ask.
        platform: where this was measured.
    """
    parts = [INTRODUCTION, f"Measured on {platform}.\n"]
    parts += [f"{n}. `{one.name}` ({one.version})" for n, (one, _) in enumerate(judged, 1)]
    parts += [f"- not asked: `{name}`: {why}" for name, why in absent]
    parts += ["", _table([report for _, report in judged]), "", "## What fails, and where"]
    for candidate, report in judged:
        if report.failed:
            parts += ["", f"### `{candidate.name}`", ""]
            parts += [f"- **{row.name}**: {row.detail} [{row.example}]" for row in report.failed]
    if not any(report.failed for _, report in judged):
        parts += ["", "Nothing."]
    refused = _refusals(judged)
    return "\n".join([*parts, "", "## What is refused", "", *(refused or ["Nothing."]), ""])


def _table(reports: Sequence[Report]) -> str:
    head = ["row", *(str(number) for number in range(1, len(reports) + 1))]
    lines = [head, ["---"] * len(head)]
    lines += [[name, *(MARKS[report[name].verdict] for report in reports)] for name in ROWS]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _refusals(judged: Sequence[tuple[Candidate, Report]]) -> list[str]:
    """Rows that were claimed and answered with NotImplementedError."""
    return [
        f"- `{candidate.name}`, {row.name}: {row.detail}"
        for candidate, report in judged
        for row in report.rows
        if row.verdict == "not supported" and not row.detail.startswith("without ")
    ]

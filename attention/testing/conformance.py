"""Check an attention function against the contract, row by row, and report the results."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, get_args

from attention.primitives.arguments import check_collection
from attention.primitives.choice import one_of
from attention.testing.implementation import (
    CAPABILITIES,
    EVERYTHING,
    Case,
    Implementation,
    SkippedError,
)
from attention.testing.reference import TOLERANCE, ContractError
from attention.testing.rows import CHECKS, DISABLES, ROWS

Verdict = Literal["pass", "fail", "error", "not supported", "skipped"]
ATTEMPTS = 25  # smaller cases to try; each may cost a compilation


@dataclass(frozen=True)
class Row:
    """The result of one check.

    Attributes:
        name: of the check.
        verdict: "pass"; "fail"; "error", if the function raised an exception; "not supported", if
            it does not claim a needed capability or raised NotImplementedError; "skipped", if the
            check depends on a row that failed, since the same fault would fail it again.
        detail: the error, its index and its size; or the reason why the check did not run.
        example: the smallest failing example that was found.
    """

    name: str
    verdict: Verdict
    detail: str = ""
    example: Case | None = None

    def __str__(self) -> str:
        words = f"{self.verdict:<14} {self.name}"
        detail = f": {self.detail}" if self.detail and self.verdict != "not supported" else ""
        return words + detail + (f" [{self.example}]" if self.example else "")


@dataclass(frozen=True)
class Report:
    """The rows of the contract, in order; `print` shows a table."""

    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether no row failed or was skipped because of a failure."""
        return all(row.verdict in ("pass", "not supported") for row in self.rows)

    @property
    def failed(self) -> tuple[Row, ...]:
        """The rows with the verdict "fail" or "error"."""
        return tuple(row for row in self.rows if row.verdict in ("fail", "error"))

    def __getitem__(self, name: str) -> Row:
        return {row.name: row for row in self.rows}[name]

    def __str__(self) -> str:
        counts = Counter(row.verdict for row in self.rows)
        summary = ", ".join(f"{counts[name]} {name}" for name in get_args(Verdict) if counts[name])
        return "\n".join([summary, *map(str, self.rows)])

    def raise_if_failed(self) -> None:
        """Raise an AssertionError with the table, unless `ok`."""
        if not self.ok:
            raise AssertionError(f"attention differs from the contract: {self}")


def check_attention(
    function: Callable[..., Any],
    supports: Collection[str] = EVERYTHING,
    *,
    rows: Collection[str] = ROWS,
    dtype: str = "float32",
    head_width: int | None = None,
) -> Report:
    """Check that a function is a correct attention, within the capabilities that it claims.

    Args:
        function: `(query [B, T, N, H], key [B, S, K, H], value [B, S, K, Hv], **arguments)` with
            the arguments of `attention.attend` that it supports. It returns the output
            `[B, T, N, Hv]`, or with `returning` a pair of the output and a dict. Arguments for
            which it raises NotImplementedError count as not supported.
        supports: names of `CAPABILITIES`; all by default.
        rows: names of `ROWS` to check; all by default.
        dtype: of the inputs, in rows that are not about a dtype.
        head_width: the only head width to use, for a function that supports few widths.

    Returns:
        A row for each property, with the smallest failing example; call `raise_if_failed()` on it
        in a test. All random numbers are seeded: the same function gets the same report.

    Raises:
        ValueError: an unknown capability, row or dtype, or no row.
    """
    if not rows:
        raise ValueError("rows is empty: name at least one row to check")
    check_collection("rows", rows, ROWS)
    check_collection("supports", supports, tuple(CAPABILITIES))
    one_of("dtype", dtype, tuple(TOLERANCE))
    implementation = Implementation(function, supports, dtype, head_width)
    found: list[Row] = []
    for name in ROWS:
        if name in rows:
            found.append(_run(name, implementation))
            if found[-1].verdict in ("fail", "error", "skipped"):
                implementation.failed |= {name, DISABLES.get(name, name)}
    return Report(tuple(found))


def _run(name: str, implementation: Implementation) -> Row:
    """Return the row of a check, with the smallest failing example."""
    _, cases, *_ = CHECKS[name]
    for case in dict.fromkeys(map(implementation.fit, cases)):
        row = _run_case(name, implementation, case)
        if row.verdict != "pass":
            return row if row.example is None else _shrink(row, implementation)
    return Row(name, "pass")


def _run_case(name: str, implementation: Implementation, case: Case) -> Row:
    check, _, *needs = CHECKS[name]
    try:
        implementation.require(*needs)
        check(implementation, case)
    except NotImplementedError as error:
        return Row(name, "not supported", _first_line(error))
    except SkippedError as error:
        return Row(name, "skipped", str(error))
    except ContractError as error:
        return Row(name, "fail", str(error), case)
    except Exception as error:  # the report contains any exception of the function under test
        return Row(name, "error", f"{type(error).__name__}: {_first_line(error)}", case)
    return Row(name, "pass")


def _shrink(row: Row, implementation: Implementation) -> Row:
    """Try smaller cases until none of them fails, or `ATTEMPTS` are used."""
    tried = {row.example}
    for _ in range(ATTEMPTS):
        fitting = (case for case in row.example.smaller() if implementation.fit(case) == case)
        case = next((case for case in fitting if case not in tried), None)
        if case is None:
            break
        tried.add(case)
        smaller = _run_case(row.name, implementation, case)
        row = smaller if smaller.verdict == row.verdict else row
    return row


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]

"""Check an attention function against the contract, row by row."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from attention.primitives.arguments import check_names
from attention.testing import (
    closures,
    derivatives,
    dropout,
    edge_cases,
    nonfinite,
    sharding,
    values,
    vectorization,
    visibility,
)
from attention.testing.capabilities import EVERYTHING
from attention.testing.case import Case, smallest
from attention.testing.check import Check
from attention.testing.implementation import Implementation
from attention.testing.report import Report, Row, Verdict

# A row comes after the rows that it depends on.
CHECKS = (
    *values.CHECKS,
    *visibility.CHECKS,
    *derivatives.CHECKS,
    *edge_cases.CHECKS,
    *nonfinite.CHECKS,
    *values.RETURNING,
    *dropout.CHECKS,
    *closures.CHECKS,
    *vectorization.CHECKS,
    *sharding.CHECKS,
)
ROWS = tuple(check.name for check in CHECKS)


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
    check_names("rows", rows, ROWS)
    implementation = Implementation(function, supports, dtype, head_width)
    results: dict[str, Row] = {}
    for check in CHECKS:
        if check.name in rows:
            results[check.name] = row = _run(check, implementation, results)
            if row.verdict in ("fail", "error") and check.capability:
                implementation.supports -= {check.capability}
    return Report(tuple(results.values()))


def _run(check: Check, implementation: Implementation, results: dict[str, Row]) -> Row:
    missing = [name for name in check.needs if not implementation.can(name)]
    if missing:
        return Row(check.name, "not supported", f"without {', '.join(missing)}")
    for name in check.depends_on:
        if name in results and results[name].verdict in ("fail", "error", "skipped"):
            return Row(check.name, "skipped", f"{name!r} has the verdict {results[name].verdict!r}")
    for case in dict.fromkeys(implementation.fit(case) for case in check.cases):
        fault = _find_fault(check, implementation, case)
        if fault is None:
            continue
        if fault[0] == "not supported":
            return Row(check.name, *fault)
        same_fault = partial(_find_same_fault, check, implementation, fault[0])
        case, (verdict, detail) = smallest(case, fault, same_fault, implementation.fits)
        return Row(check.name, verdict, detail, case)
    return Row(check.name, "pass")


def _find_fault(
    check: Check, implementation: Implementation, case: Case
) -> tuple[Verdict, str] | None:
    try:
        detail = check.find_fault(implementation, case)
    except NotImplementedError as error:
        return "not supported", _first_line(error)
    except Exception as error:  # the report contains any exception of the function under test
        return "error", f"{type(error).__name__}: {_first_line(error)}"
    return None if detail is None else ("fail", detail)


def _find_same_fault(
    check: Check, implementation: Implementation, verdict: Verdict, case: Case
) -> tuple[Verdict, str] | None:
    fault = _find_fault(check, implementation, case)
    return fault if fault is not None and fault[0] == verdict else None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""

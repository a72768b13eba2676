"""Holds a function against the contract, row by row."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from attention.primitives.checks import names
from attention.testing import derivatives, dropping, nothing, values, visibility
from attention.testing.capabilities import EVERYTHING
from attention.testing.case import Case, smallest
from attention.testing.promise import Promise
from attention.testing.report import Report, Row, Verdict
from attention.testing.subject import Subject

# In this order: a row comes after those it rests on.
PROMISES = (
    *values.ROWS,
    *visibility.ROWS,
    *derivatives.ROWS,
    *nothing.ROWS,
    *values.ASKING,
    *dropping.ROWS,
)
ROWS = tuple(promise.name for promise in PROMISES)


def check_attention(
    function: Callable[..., Any],
    supports: Collection[str] = EVERYTHING,
    *,
    rows: Collection[str] = ROWS,
    dtype: str = "float32",
    head_width: int | None = None,
) -> Report:
    """Whether a function is a correct attention, in what it claims to do.

    Args:
        function: `(query [B, T, N, H], key [B, S, K, H], value [B, S, K, Hv], **arguments)` with
            those arguments of `attention.attend` that it supports. It returns the output
            `[B, T, N, Hv]`, or with `returning` a pair of it and a dict. What it answers with
            NotImplementedError counts as not supported.
        supports: names of `CAPABILITIES`; everything unless told.
        rows: names of `ROWS`, which alone are judged; all unless told.
        dtype: of the inputs, where a row is not about a dtype.
        head_width: the only one to try, for a function that takes few.

    Returns:
        A row for each promise, with the smallest failing example; `raise_if_failed()` on it is a
        test. Every random number is seeded: the same function gets the same report.

    Raises:
        ValueError: an unknown capability, row or dtype, or no row.
    """
    if not rows:
        raise ValueError("a function that is judged by no row keeps every promise: name one")
    names("rows", rows, ROWS)
    subject = Subject(function, supports, dtype, head_width)
    judged: dict[str, Row] = {}
    for promise in PROMISES:
        if promise.name in rows:
            judged[promise.name] = row = _judge(promise, subject, judged)
            if row.verdict in ("fail", "error") and promise.proves:
                subject.supports -= {promise.proves}
    return Report(tuple(judged.values()))


def _judge(promise: Promise, subject: Subject, judged: dict[str, Row]) -> Row:
    missing = [name for name in promise.needs if not subject.can(name)]
    if missing:
        return Row(promise.name, "not supported", f"without {', '.join(missing)}")
    for name in promise.rests_on:
        if name in judged and judged[name].verdict in ("fail", "error", "not judged"):
            return Row(promise.name, "not judged", f"rests on {name!r}")
    for case in dict.fromkeys(subject.fit(case) for case in promise.cases):
        found = _fault(promise, subject, case)
        if found is None:
            continue
        if found[0] == "not supported":
            return Row(promise.name, *found)
        again = partial(_same_fault, promise, subject, found[0])
        case, (verdict, detail) = smallest(case, found, again, subject.fits)
        return Row(promise.name, verdict, detail, case)
    return Row(promise.name, "pass")


def _fault(promise: Promise, subject: Subject, case: Case) -> tuple[Verdict, str] | None:
    try:
        detail = promise.check(subject, case)
    except NotImplementedError as error:
        return "not supported", _sentence(error)
    except Exception as error:  # whatever a function under test may raise belongs in the report
        return "error", f"{type(error).__name__}: {_sentence(error)}"
    return None if detail is None else ("fail", detail)


def _same_fault(
    promise: Promise, subject: Subject, verdict: Verdict, case: Case
) -> tuple[Verdict, str] | None:
    found = _fault(promise, subject, case)
    return found if found is not None and found[0] == verdict else None


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""

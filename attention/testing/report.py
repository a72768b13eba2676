"""The report of `check_attention`: one row for each property of the contract."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from attention.testing.case import Case

Verdict = Literal["pass", "fail", "error", "not supported", "skipped"]
VERDICTS: tuple[Verdict, ...] = ("pass", "fail", "error", "not supported", "skipped")


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
        """Return the row of this name."""
        return {row.name: row for row in self.rows}[name]

    def __str__(self) -> str:
        counts = Counter(row.verdict for row in self.rows)
        summary = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
        return "\n".join([summary, *map(str, self.rows)])

    def raise_if_failed(self) -> None:
        """Raise an AssertionError with the table, unless `ok`."""
        if not self.ok:
            raise AssertionError(f"attention differs from the contract: {self}")

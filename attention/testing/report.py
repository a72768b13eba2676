"""What the suite found: a row for each promise of the contract."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from attention.testing.case import Case

Verdict = Literal["pass", "fail", "error", "not supported", "not judged"]
VERDICTS: tuple[Verdict, ...] = ("pass", "fail", "error", "not supported", "not judged")


@dataclass(frozen=True)
class Row:
    """One promise, and whether it is kept.

    Attributes:
        name: of the promise.
        verdict: "pass"; "fail"; "error", if the function raised one; "not supported", if it never
            claimed this or says NotImplementedError; "not judged", if it rests on a row that
            failed, whose fault would only show here again.
        detail: what is wrong, where and by how much; or why there is no verdict.
        example: the smallest example that was found of what is wrong.
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
    """The rows of the contract, in its order; printed, it is a table."""

    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether every promise that was made is kept."""
        return all(row.verdict in ("pass", "not supported") for row in self.rows)

    @property
    def failed(self) -> tuple[Row, ...]:
        """The rows that fail or raise."""
        return tuple(row for row in self.rows if row.verdict in ("fail", "error"))

    def __getitem__(self, name: str) -> Row:
        """The row of this name."""
        return {row.name: row for row in self.rows}[name]

    def __str__(self) -> str:
        counts = Counter(row.verdict for row in self.rows)
        summary = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
        return "\n".join([summary, *map(str, self.rows)])

    def raise_if_failed(self) -> None:
        """Raises an AssertionError with the table, unless every promise is kept."""
        if not self.ok:
            raise AssertionError(f"this is not the attention it claims to be: {self}")

"""The report of a validation: as data, as text, and as a page with pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.errors import FormatError
from icefloe.model.record import Record

if TYPE_CHECKING:
    import os

_SHOWN_PASSED = 20


class Example(Record, frozen=True):
    """A cell that is not as expected: its index, its coordinates, and its value."""

    index: tuple[int, ...]
    coordinates: dict[str, str]
    value: float | str | None
    """None if it is missing."""

    def __str__(self) -> str:
        place = ", ".join(f"{name}={value}" for name, value in self.coordinates.items())
        shown = "missing" if self.value is None else _number(self.value)
        return f"{list(self.index)}{f' ({place})' if place else ''}: {shown}"


class FailureMap(Record, frozen=True):
    """Where the failing cells of an array are, counted in bins."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    plane_shape: tuple[int, int]
    """Bins along the last two dimensions."""
    plane: tuple[tuple[int, int, int], ...] = ()
    """Row, column and failing cells of bins."""
    profile_bins: int = 0
    profile: tuple[tuple[int, int], ...] = ()
    """Number and failing cells of bins along the first dimension."""


class CheckResult(Record, frozen=True):
    """The result of one expectation for one array."""

    expectation: str
    """The kind of expectation, such as `in_range`."""
    title: str
    array: str
    passed: bool
    detail: str
    """What was found, in a sentence."""
    severity: str = "error"
    cells: int = 0
    failing: int = 0
    examples: tuple[Example, ...] = ()
    where: FailureMap | None = None

    @property
    def is_error(self) -> bool:
        """Whether it prevents data from being published."""
        return not self.passed and self.severity == "error"

    @property
    def verdict(self) -> str:
        """One word: passed, failed or warning."""
        return "passed" if self.passed else "failed" if self.is_error else "warning"

    def __str__(self) -> str:
        lines = [f"{self.verdict:8}{self.array}  {self.title}: {self.detail}"]
        lines += [f"            at {example}" for example in self.examples]
        return "\n".join(lines)


class ValidationReport(Record, frozen=True):
    """The result of a validation; `print` it, or display it in a notebook.

    >>> result = CheckResult("in_range", "in range", "/t2m", passed=True, detail="all 9 values")
    >>> report = ValidationReport("repo", "staging", "1CECHNKREP0F1RSTCMT0", (result,))
    >>> report.passed
    True
    >>> print(report)
    staging of repo at 1CECHNKREP0F1RSTCMT0: 1 passed
    passed  /t2m  in range: all 9 values
    """

    location: str
    version: str
    """The branch or version that was validated."""
    snapshot_id: str
    results: tuple[CheckResult, ...]
    chunks_read: int = 0
    chunks_skipped: int = 0
    """Chunks that need not be read: their statistics tell enough, or both versions have them."""
    bytes_read: int = 0
    tasks: int = 0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether all expectations are met, except those that only warn."""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The failures that prevent the data from being published."""
        return tuple(result for result in self.results if result.is_error)

    @property
    def warnings(self) -> tuple[CheckResult, ...]:
        """Expectations that are not met and only warn."""
        return tuple(each for each in self.results if not each.passed and not each.is_error)

    @property
    def counts(self) -> str:
        """How many passed and failed, in words."""
        numbers = (
            (len(self.failures), "failed"),
            (len(self.warnings), "with a warning"),
            (sum(result.passed for result in self.results), "passed"),
        )
        return ", ".join(f"{number} {word}" for number, word in numbers if number) or "no checks"

    @property
    def heading(self) -> str:
        """What was validated, and the outcome."""
        return f"{self.version} of {self.location} at {self.snapshot_id}: {self.counts}"

    def __str__(self) -> str:
        ordered = sorted(self.results, key=lambda each: (each.passed, not each.is_error))
        bad = [result for result in ordered if not result.passed]
        good = [result for result in ordered if result.passed]
        lines = [self.heading, *map(str, bad), *map(str, good[:_SHOWN_PASSED])]
        if len(good) > _SHOWN_PASSED:
            lines.append(f"and {len(good) - _SHOWN_PASSED} more that passed")
        return "\n".join(lines)

    def to_data(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {"passed": self.passed, **plain}

    @classmethod
    def from_data(cls, data: Any) -> ValidationReport:
        """Read what `to_data` made; raises FormatError."""
        try:
            return msgspec.convert(data, cls, strict=False)
        except msgspec.ValidationError as error:
            raise FormatError(f"this is no report of a validation: {error}") from None

    def to_html(self) -> str:
        """The report as a page that needs no other files, with pictures of the failing cells."""
        from icefloe.spark.publishing.report_page import report_page

        return report_page(self)

    def _repr_html_(self) -> str:
        from icefloe.spark.publishing.report_page import report_body

        return report_body(self)

    def write(self, folder: str | os.PathLike[str], name: str = "report") -> None:
        """Write the report into a folder: as NAME.json, NAME.txt and NAME.html."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        data = msgspec.json.format(msgspec.json.encode(self.to_data()), indent=2)
        (place / f"{name}.json").write_bytes(data + b"\n")
        (place / f"{name}.txt").write_text(f"{self}\n", "utf-8")
        (place / f"{name}.html").write_text(self.to_html(), "utf-8")


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"

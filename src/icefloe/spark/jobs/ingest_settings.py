"""What an ingest was told, checked."""

from __future__ import annotations

from typing import Any, Literal

from icefloe.errors import InvalidInputError
from icefloe.ingest.referencing import ParseOptions
from icefloe.model.record import Record

MODES = ("virtual", "copy")
POLICIES = ("fail", "skip", "quarantine")


class IngestSettings(Record, frozen=True, eq=False):
    """The arguments of an ingest."""

    mode: Literal["virtual", "copy"]
    group: str
    parse: ParseOptions
    compat: str
    check: str
    decode: bool
    chunks: dict[str, int]
    encoding: dict[str, dict[str, Any]]
    on_broken: str
    again: bool
    statistics: bool | tuple[str, ...] = False

    def validate(self) -> None:
        """Raise InvalidInputError if something is not one of the choices."""
        if self.mode not in MODES:
            raise InvalidInputError(f"mode is one of {MODES}, found {self.mode!r}")
        if self.on_broken not in POLICIES:
            raise InvalidInputError(f"on_broken is one of {POLICIES}, found {self.on_broken!r}")
        if self.compat not in ("equals", "override"):
            raise InvalidInputError(f"compat is 'equals' or 'override', found {self.compat!r}")
        if self.statistics and self.mode == "virtual" and self.check == "none":
            raise InvalidInputError(
                "statistics of chunks in other files hold as long as the file does, which cannot "
                "be told with check='none'; use another check, or no statistics"
            )

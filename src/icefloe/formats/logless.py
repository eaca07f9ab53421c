"""Codecs of generations whose commits write no transaction logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError
from icefloe.formats.container import bad_file
from icefloe.model.record import Record

if TYPE_CHECKING:
    from icefloe.formats.port import EncodedFile
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog

_NO_LOGS = (
    "this generation has no transaction logs: what a commit changed is found by comparing snapshots"
)


class LoglessCodec(Record, frozen=True):
    """The part of such a codec that refuses logs."""

    def encode_transaction_log(
        self, log: TransactionLog, snapshot: Snapshot | None = None
    ) -> EncodedFile:
        """Raise InvalidInputError."""
        del log, snapshot
        raise InvalidInputError(_NO_LOGS)

    def decode_transaction_log(self, data: bytes, key: str) -> TransactionLog:
        """Raise FormatError."""
        del data
        raise bad_file(key, _NO_LOGS)
